"""Only the chief prints and writes: what the other workers of an unchanged script print and write is dropped.

Dropped on other workers: standard output; files that the script itself opens for writing, by `open` or `pathlib.Path`;
and files of the functions in `_SAVING` and `_KERAS_SAVING`. Not caught: standard error, `os`, `shutil`, subprocesses,
and files that libraries write in other ways.
"""

import builtins
import contextlib
import functools
import importlib.util
import inspect
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.config.patching import replaced
from tfdist.training import api as trainer

# Module, class or None, functions.
_SAVING = (
    ("numpy", None, ("save", "savez", "savez_compressed", "savetxt")),
    ("PIL.Image", "Image", ("save",)),
    ("matplotlib.figure", "Figure", ("savefig",)),
    ("keras.utils", None, ("plot_model", "save_img")),
)
# Callbacks of Keras that write files of their own.
_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)
# The chief saves, and the others wait: the next line may load the file.
_KERAS_SAVING = (
    (keras.Model, ("save", "save_weights", "export")),
    (keras.saving, ("save_model",)),
    (keras.models, ("save_model",)),
)
# Whether tfdist's fit, evaluate or predict runs, which saves on the chief only; None: no script runs by tfdist.run.
_running: bool | None = None


@contextlib.contextmanager
def only_from_chief(cluster: Cluster, script: pathlib.Path) -> Iterator[None]:
    """Drops the output of workers other than the chief.

    Args:
        cluster: the workers.
        script: code in this file's directory and below is the script's own.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_script_runs())
        if cluster.num_workers > 1:
            for owner, names in _KERAS_SAVING:
                for name in names:
                    stack.enter_context(replaced(owner, name, functools.partial(_saved_by_chief, cluster)))
        if not cluster.is_chief:
            nothing = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nothing))
            guarded = functools.partial(_open, f"{script.resolve().parent}/")
            stack.enter_context(replaced(builtins, "open", guarded))
            stack.enter_context(replaced(io, "open", guarded))
            for owner, names in _saving_functions():
                for name in names:
                    stack.enter_context(replaced(owner, name, _dropped))
        yield


def _saving_functions() -> Iterator[tuple[Any, tuple[str, ...]]]:
    for module, kind, names in _SAVING:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            owner = importlib.import_module(module)
            yield owner if kind is None else getattr(owner, kind), names


@contextlib.contextmanager
def running(own: bool = True) -> Iterator[None]:
    """Runs tfdist's own code: what it saves, and the variables that Keras makes for it, are of this worker only.

    Args:
        own: False: code of the script, such as a callback, is called within tfdist's own.
    """
    global _running
    before, _running = _running, own
    try:
        yield
    finally:
        _running = before


@contextlib.contextmanager
def _script_runs() -> Iterator[None]:
    global _running
    _running = False
    try:
        yield
    finally:
        _running = None


def is_running() -> bool:
    """Returns True within `running`."""
    return bool(_running)


def in_script() -> bool:
    """Returns True if tfdist.run runs a script."""
    return _running is not None


def callback_placement() -> trainer.Placement:
    """Returns where callbacks run: in a script of tfdist.run on all workers, except for those that only write."""
    if not in_script():
        return trainer.Placement()
    return trainer.Placement(_runs_on_all_workers, lambda: running(own=False))


def _runs_on_all_workers(callback: keras.callbacks.Callback) -> bool:
    """The script's own callbacks, and Keras' except for those whose files Keras does not write by `model.save`."""
    if trainer.runs_on_all_workers(callback) or isinstance(callback, keras.callbacks.ModelCheckpoint):
        return True
    if hasattr(callback, "on_all_workers") or isinstance(callback, _WRITERS):
        return False
    kind = type(callback)
    return kind.__module__.startswith("keras.") or user_code.defines(kind)


def _saved_by_chief(cluster: Cluster, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if _running:
        return original(*args, **keywords)
    saved = None
    if cluster.is_chief:
        with running():
            saved = original(*args, **keywords)
    cluster.barrier()
    return saved


def _dropped(original: Callable[..., Any], *args: Any, **keywords: Any) -> None:
    del original, args, keywords


def _open(directory: str, original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
    """Opens as `open`; a file that the script opens for writing is /dev/null."""
    if any(letter in mode for letter in "wax+"):
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename in (__file__, pathlib.__file__):
            frame = frame.f_back
        caller = "" if frame is None else os.path.abspath(frame.f_code.co_filename)
        if caller.startswith(directory) and not caller.startswith(_LIBRARIES):
            return original(os.devnull, mode.replace("x", "w"), *args, **keywords)
    return original(file, mode, *args, **keywords)


# A script may be in a directory that also has its environment.
_LIBRARIES = tuple(f"{pathlib.Path(module.__file__).parents[1]}/" for module in (np, keras))
