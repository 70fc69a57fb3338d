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
from tfdist.config.patching import replaced

# Module, class or None, functions.
_SAVING = (
    ("numpy", None, ("save", "savez", "savez_compressed", "savetxt")),
    ("PIL.Image", "Image", ("save",)),
    ("matplotlib.figure", "Figure", ("savefig",)),
    ("keras.utils", None, ("plot_model", "save_img")),
)
# The chief saves, and the others wait: the next line may load the file.
_KERAS_SAVING = (
    (keras.Model, ("save", "save_weights", "export")),
    (keras.saving, ("save_model",)),
    (keras.models, ("save_model",)),
)
# Whether tfdist's fit, evaluate or predict runs, which saves on the chief only.
_running = False


@contextlib.contextmanager
def only_from_chief(cluster: Cluster, script: pathlib.Path) -> Iterator[None]:
    """Drops the output of workers other than the chief.

    Args:
        cluster: the workers.
        script: code in this file's directory and below is the script's own.
    """
    with contextlib.ExitStack() as stack:
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
def running() -> Iterator[None]:
    """Runs tfdist's own code: what it saves, and the variables that Keras makes for it, are of this worker only."""
    global _running
    _running = True
    try:
        yield
    finally:
        _running = False


def is_running() -> bool:
    """Returns True within `running`."""
    return _running


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
