"""Only the chief prints and writes: the other workers of an unchanged script wait until it has.

What a line of the script writes, in the main thread, is written once: by `open`, `pathlib`, `os`, `shutil`, `zipfile`,
`tempfile`, NumPy, h5py, Pillow, Matplotlib, pandas, Keras, `tf.io`, `tf.train.Checkpoint` and `tf.summary`. All workers
meet before it and after it, or when a file is closed or flushed: so the next line finds the file on every worker. If it
fails on the chief, it fails on all. What another worker "opens for writing" is private. Paths in the temporary
directory are those of a host, and its first worker writes them.

Not caught: writes of other threads, of input functions and of child processes, files that other libraries write,
`tempfile.NamedTemporaryFile`, standard error, and `os.open`.
"""

import builtins
import contextlib
import functools
import inspect
import io
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import weakref
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import patching
from tfdist.config.patching import replaced
from tfdist.keras_fit.script import context

# Owner, functions, and the name of the parameter that is the path; where it is given, it must be a path, not a file.
_WRITING: tuple[tuple[Any, tuple[str, ...], str], ...] = (
    (os, ("remove", "unlink", "mkdir", "rmdir", "truncate", "chmod", "utime"), "path"),
    (os, ("rename", "replace", "symlink", "link"), "dst"),
    (os, ("makedirs", "removedirs"), "name"),
    (os, ("renames",), "new"),
    (shutil, ("copy", "copy2", "copyfile", "copytree", "move"), "dst"),
    (shutil, ("rmtree",), "path"),
    (shutil, ("make_archive",), "base_name"),
    (shutil, ("unpack_archive",), "extract_dir"),
    (zipfile.ZipFile, ("extractall", "extract"), "path"),
    (tarfile.TarFile, ("extractall", "extract"), "path"),
    (urllib.request, ("urlretrieve",), "filename"),
    (keras.utils, ("save_img",), "path"),
    (keras.utils, ("plot_model",), "to_file"),
    (tf.io.gfile, ("makedirs", "mkdir", "remove", "rmtree"), "path"),
    (tf.io.gfile, ("copy", "rename"), "dst"),
    (tf.io, ("write_file",), "filename"),
    (tf.saved_model, ("save",), "export_dir"),
)
# The same for modules that are replaced when the script imports them: module, class or None, functions, parameter.
_WRITING_IF_IMPORTED = (
    ("numpy", None, ("save", "savez", "savez_compressed"), "file"),
    ("numpy", None, ("savetxt",), "fname"),
    ("PIL.Image", "Image", ("save",), "fp"),
    ("matplotlib.figure", "Figure", ("savefig",), "fname"),
    ("pandas", "DataFrame", ("to_csv", "to_json"), "path_or_buf"),
    ("pandas", "Series", ("to_csv", "to_json"), "path_or_buf"),
    ("pandas", "DataFrame", ("to_pickle", "to_parquet"), "path"),
)
# Keras' own, also called by its callbacks: the chief saves, and the others wait.
_KERAS_SAVING = (
    (keras.Model, ("save", "save_weights", "export"), "filepath"),
    (keras.saving, ("save_model",), "filepath"),
    (keras.models, ("save_model",), "filepath"),
)


@contextlib.contextmanager
def written_once(cluster: Cluster) -> Iterator[None]:
    """Lets one worker print and write for all in the block, which runs a script."""
    if cluster.num_workers == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, names, parameter in _WRITING:
            for name in names:
                stack.enter_context(replaced(owner, name, functools.partial(_once, parameter)))
        for owner, names, parameter in _KERAS_SAVING:
            for name in names:
                stack.enter_context(replaced(owner, name, functools.partial(_saved_once, parameter)))
        for owner in (builtins, io):
            stack.enter_context(replaced(owner, "open", _open))
        stack.enter_context(replaced(keras.utils, "get_file", _get_file))
        stack.enter_context(replaced(tempfile, "mkdtemp", _mkdtemp))
        stack.enter_context(replaced(tempfile, "mkstemp", _mkstemp))
        stack.enter_context(replaced(tempfile.TemporaryDirectory, "cleanup", _cleanup))
        stack.enter_context(replaced(h5py.File, "__init__", _open_h5py))
        stack.enter_context(replaced(h5py.File, "close", _close_h5py))
        for owner, name in ((tf.io, "TFRecordWriter"), (tf.io.gfile, "GFile")):
            stack.enter_context(replaced(owner, name, _open_of_tensorflow))
        for name in ("save", "write"):
            stack.enter_context(replaced(tf.train.Checkpoint, name, _save_checkpoint))
        stack.enter_context(replaced(tf.train.CheckpointManager, "__init__", _make_manager))
        stack.enter_context(replaced(tf.train.CheckpointManager, "save", _save_by_manager))
        stack.enter_context(_on_import(stack))
        if not cluster.is_chief:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(replaced(tf.summary, "create_file_writer", _null_writer))
            for name in ("start", "stop"):
                stack.enter_context(replaced(tf.profiler.experimental, name, _nothing))
        yield


def _path(parameter: str, original: Callable[..., Any], args: tuple, keywords: dict) -> Any:
    try:
        return inspect.signature(original).bind(*args, **keywords).arguments.get(parameter)
    except (TypeError, ValueError):  # A wrong call, or a function without a signature.
        return keywords.get(parameter)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | bytes | os.PathLike)


def _once(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    place = context.calling_line()
    path = _path(parameter, original, args, keywords) if place else None
    if not place or not (path is None or _is_path(path)) or keywords.get("dir_fd") is not None:
        return original(*args, **keywords)
    return context.once(place, functools.partial(original, *args, **keywords), path)


def _saved_once(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if not context.on_all_workers():
        return original(*args, **keywords)
    path = _path(parameter, original, args, keywords)
    return context.once(original.__qualname__, functools.partial(original, *args, **keywords), path)


def _open(original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
    """Opens as `open`; a file that the script opens for writing is a private one on other workers."""
    place = context.calling_line() if _is_path(file) and any(letter in mode for letter in "wax+") else ""
    if not place or os.fsdecode(file) == os.devnull:
        return original(file, mode, *args, **keywords)
    opened = None
    if not context.owns(file):
        opened = _private(original, file, mode, args, keywords)

    def open_here() -> None:
        nonlocal opened
        opened = original(file, mode, *args, **keywords)

    try:
        context.once(place, open_here, file)
    except Exception:
        if opened is not None:
            opened.close()
        raise
    _meet_when_closed(opened, place)
    return opened


def _private(original: Callable[..., Any], file: Any, mode: str, args: tuple, keywords: dict) -> Any:
    """Returns what stands for a file on a worker that does not write it; it holds what `mode` lets a script read."""
    if "+" not in mode:
        return original(os.devnull, mode.replace("x", "w"), *args, **keywords)
    binary = "b" in mode
    content = b"" if binary else ""
    if "r" in mode or "a" in mode:
        with contextlib.suppress(FileNotFoundError), original(file, "rb" if binary else "r", *args, **keywords) as old:
            content = old.read()
    made = io.BytesIO(content) if binary else io.StringIO(content)
    made.seek(0, os.SEEK_END if "a" in mode else os.SEEK_SET)
    return made


def _meet_when_closed(file: Any, place: str) -> None:
    """Lets all workers meet when a line of the script closes or flushes `file`."""
    # The file must not refer to itself: it is closed when its last reference goes, as usual.
    reference, kind = weakref.ref(file), type(file)

    def close() -> None:
        opened = reference()
        if opened is not None and not opened.closed:
            vars(opened).pop("flush")  # Called by `close`.
            kind.close(opened)
            _meet_at(f"close {place}")

    def flush() -> None:
        opened = reference()
        if opened is not None:
            kind.flush(opened)
            if not opened.closed:
                _meet_at(f"flush {place}")

    file.close, file.flush = close, flush


def _meet_at(what: str) -> None:
    place = context.calling_line()
    if place:
        context.meet(f"{what} {place}")


class _OfTensorFlow:
    """A writer of TensorFlow; on other workers None, which takes everything."""

    def __init__(self, writer: Any, place: str):
        self._writer, self._place = writer, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name) if self._writer is not None else lambda *args, **keywords: None

    def __enter__(self) -> "_OfTensorFlow":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def flush(self) -> None:
        """Writes what was given so far; all workers meet."""
        if self._writer is not None:
            self._writer.flush()
        _meet_at(f"flush {self._place}")

    def close(self) -> None:
        """Closes the file; all workers meet."""
        if self._writer is not None:
            self._writer.close()
        _meet_at(f"close {self._place}")


def _open_of_tensorflow(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    place = context.calling_line()
    reads = original.__name__ != "TFRecordWriter" and not set("wa+") & set(str([*args[1:2], keywords.get("mode", "")]))
    if not place or reads:
        return original(*args, **keywords)
    writer = None

    def open_here() -> None:
        nonlocal writer
        writer = original(*args, **keywords)

    context.once(place, open_here, args[0] if args else next(iter(keywords.values())))
    return _OfTensorFlow(writer, place)


def _open_h5py(original: Callable[..., None], file: h5py.File, name: Any, mode: str = "r", *args: Any, **keywords: Any):
    """Opens an HDF5 file; one that the script writes is in memory on other workers."""
    place = context.calling_line() if mode != "r" and _is_path(name) else ""
    if not place:
        original(file, name, mode, *args, **keywords)
        return
    if not context.owns(name):
        original(file, name, mode, *args, **{**keywords, "driver": "core", "backing_store": False})
    context.once(place, lambda: original(file, name, mode, *args, **keywords), name)


def _close_h5py(original: Callable[..., None], file: h5py.File) -> None:
    writes = bool(file) and file.mode != "r"
    original(file)
    if writes:
        _meet_at("close")


def _get_file(original: Callable[..., str], *args: Any, **keywords: Any) -> str:
    """Downloads on the chief, then on the first worker of each other host, where the file may be missing."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    context.once(place, functools.partial(original, *args, **keywords))
    for turn in (context.is_first_of_host(), True):
        if turn:
            with context.running():
                found = original(*args, **keywords)
        context.meet(f"{place} downloaded")
    return found


def _mkdtemp(original: Callable[..., str], *args: Any, **keywords: Any) -> str:
    """Makes a directory that the workers of a host share, with the name that the chief has drawn."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    path = context.once(place, functools.partial(original, *args, **keywords))
    if context.is_first_of_host():
        with context.running(), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    context.meet(f"{place} made")
    return path


def _cleanup(original: Callable[..., None], directory: tempfile.TemporaryDirectory) -> None:
    place = context.calling_line()
    if place:
        context.meet(f"{place} cleanup")
    with context.running():  # The first of a host removes it; the others find nothing.
        original(directory)


def _mkstemp(original: Callable[..., tuple[int, str]], *args: Any, **keywords: Any) -> tuple[int, str]:
    """Makes a file that the workers of a host share, with the name that the chief has drawn."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    handle = None

    def make() -> str:
        nonlocal handle
        handle, path = original(*args, **keywords)
        return path

    path = context.once(place, make)
    return (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if handle is None else handle), path


def _save_checkpoint(original: Callable[..., str], checkpoint: tf.train.Checkpoint, *args: Any, **keywords: Any) -> Any:
    place = context.calling_line()
    if not place:
        return original(checkpoint, *args, **keywords)
    path = context.once(place, functools.partial(original, checkpoint, *args, **keywords))
    if not context.owns(None) and original.__name__ == "save":
        with context.running():
            checkpoint.save_counter.assign_add(1)
    return path


# What each manager of checkpoints was made with.
_managers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _make_manager(
    original: Callable[..., None],
    manager: tf.train.CheckpointManager,
    checkpoint: tf.train.Checkpoint,
    *args: Any,
    **keywords: Any,
) -> None:
    original(manager, checkpoint, *args, **keywords)
    _managers[manager] = (functools.partial(original, manager, checkpoint, *args, **keywords), checkpoint)


def _save_by_manager(original: Callable[..., Any], manager: tf.train.CheckpointManager, *args: Any, **keywords: Any):
    place = context.calling_line()
    if not place or manager not in _managers:
        return original(manager, *args, **keywords)
    path = context.once(place, functools.partial(original, manager, *args, **keywords))
    make, checkpoint = _managers[manager]
    if not context.owns(None):
        with context.running():
            checkpoint.save_counter.assign_add(1)
            make()  # It reads from the directory what the chief has saved.
    context.meet(place)
    return path


def _null_writer(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if context.is_running():
        return original(*args, **keywords)
    return tf.summary.create_noop_writer()


def _nothing(original: Callable[..., Any], *args: Any, **keywords: Any) -> None:
    del original, args, keywords


@contextlib.contextmanager
def _on_import(stack: contextlib.ExitStack) -> Iterator[None]:
    """Replaces the functions of `_WRITING_IF_IMPORTED`, of modules that are imported later, too."""

    def replace(module: Any) -> None:
        for name, kind, functions, parameter in _WRITING_IF_IMPORTED:
            owner = module if kind is None else getattr(module, kind, None)
            if name == module.__name__ and owner is not None:
                for function in functions:
                    stack.enter_context(replaced(owner, function, functools.partial(_once, parameter)))

    def around(execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        replace(module)

    names = {name for name, *_ in _WRITING_IF_IMPORTED}
    for name in names & set(sys.modules):
        replace(sys.modules[name])
    hook = patching.ImportHook(names - set(sys.modules), around)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
