"""Only the chief prints and writes: the other workers of an unchanged script wait until it has.

What a line of the script writes, in the main thread, is written once: by `open`, `os`, `shutil`, h5py, Keras, `tf.io`,
`tf.train.Checkpoint` and `tf.summary`, also if a library that the line calls does so, such as NumPy, Pillow or
Matplotlib. All workers meet before it and after it, or when a file is closed or flushed: so the next line finds the
file on every worker. If it fails on the chief, it fails on all. Temporary files have names that the chief draws, and
the first worker of a host writes them for all there.

Not caught: writes of other threads, of input functions and of child processes, of libraries that write by code that is
not Python's, standard error, and `os.open`.
"""

import builtins
import bz2
import contextlib
import functools
import inspect
import io
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import patching
from tfdist.config.patching import patch
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import context, handles

# Owner, functions, and the name of the parameter that is the path; where it is given, it must be a path, not a file.
_WRITING: tuple[tuple[Any, tuple[str, ...], str], ...] = (
    (os, ("remove", "unlink", "mkdir", "rmdir", "truncate", "chmod", "utime"), "path"),
    (os, ("rename", "replace", "symlink", "link"), "dst"),
    (os, ("makedirs", "removedirs"), "name"),
    (os, ("renames",), "new"),
    (pathlib.Path, ("touch",), "self"),
    (shutil, ("copy", "copy2", "copyfile", "copytree", "move"), "dst"),
    (shutil, ("rmtree",), "path"),
    (shutil, ("make_archive",), "base_name"),
    (shutil, ("unpack_archive",), "extract_dir"),
    (zipfile.ZipFile, ("extractall", "extract"), "path"),
    (tarfile.TarFile, ("extractall", "extract"), "path"),
    (urllib.request, ("urlretrieve",), "filename"),
    (np, ("savetxt",), "fname"),  # It has taken `io.open` when NumPy was imported.
    (keras.utils, ("save_img",), "path"),
    (keras.utils, ("plot_model",), "to_file"),
    (tf.io.gfile, ("makedirs", "mkdir", "remove", "rmtree"), "path"),
    (tf.io.gfile, ("copy", "rename"), "dst"),
    (tf.io, ("write_file",), "filename"),
    (tf.saved_model, ("save",), "export_dir"),
    (tf.data.Dataset, ("save",), "path"),
)
# The same for modules that are replaced when the script imports them: module, class or None, functions, parameter. They
# write by code that is not Python's, or more than a file.
_WRITING_IF_IMPORTED = (
    ("pandas", "DataFrame", ("to_parquet", "to_feather", "to_orc"), "path"),
    ("pandas", "DataFrame", ("to_hdf",), "path_or_buf"),
    ("cv2", None, ("imwrite",), "filename"),
    ("soundfile", None, ("write",), "file"),
    ("sqlite3", None, ("connect",), "database"),
    ("sqlite3.dbapi2", None, ("connect",), "database"),
)
# Keras' own, also called by its callbacks: the chief saves, and the others wait.
_KERAS_SAVING = (
    (keras.Model, ("save", "save_weights", "export"), "filepath"),
    (keras.saving, ("save_model",), "filepath"),
    (keras.models, ("save_model",), "filepath"),
)


@contextlib.contextmanager
def write_once(cluster: Cluster) -> Iterator[None]:
    """Lets one worker print and write for all in the block, which runs a script."""
    if cluster.num_workers == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, names, parameter in _WRITING:
            for name in names:
                stack.enter_context(patch(owner, name, functools.partial(_once, parameter)))
        for owner, names, parameter in _KERAS_SAVING:
            for name in names:
                stack.enter_context(patch(owner, name, functools.partial(_save_once, parameter)))
        # These two modules have taken `open` when they were imported.
        for owner, name in ((builtins, "open"), (io, "open"), (tarfile, "bltn_open"), (bz2, "_builtin_open")):
            if hasattr(owner, name):
                stack.enter_context(patch(owner, name, handles.open_file))
        stack.enter_context(patch(keras.utils, "get_file", _get_file))
        stack.enter_context(patch(tempfile, "mkdtemp", make_directory))
        stack.enter_context(patch(tempfile, "mkstemp", make_file))
        stack.enter_context(patch(tempfile, "NamedTemporaryFile", make_named_file))
        stack.enter_context(patch(tempfile.TemporaryDirectory, "cleanup", clean_up))
        stack.enter_context(patch(np.memmap, "__new__", handles.map_file))
        stack.enter_context(patch(h5py.File, "__init__", handles.open_h5py))
        stack.enter_context(patch(h5py.File, "close", handles.close_h5py))
        for owner, name in ((tf.io, "TFRecordWriter"), (tf.io.gfile, "GFile")):
            stack.enter_context(patch(owner, name, handles.open_of_tensorflow))
        for name in ("save", "write"):
            stack.enter_context(patch(tf.train.Checkpoint, name, handles.save_checkpoint))
        stack.enter_context(patch(tf.train.CheckpointManager, "__init__", handles.make_manager))
        stack.enter_context(patch(tf.train.CheckpointManager, "save", handles.save_by_manager))
        stack.enter_context(_on_import(stack))
        if not cluster.is_chief:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(patch(tf.summary, "create_file_writer", _null_writer))
            for name, parameter in (("cache", "filename"), ("snapshot", "path")):
                with_own_path = functools.partial(_own_path, cluster.rank, parameter)
                stack.enter_context(patch(tf.data.Dataset, name, with_own_path))
            for name in ("start", "stop"):
                stack.enter_context(patch(tf.profiler.experimental, name, lambda original, *args, **keywords: None))
        yield


def _path(parameter: str, original: Callable[..., Any], args: tuple, keywords: dict) -> Any:
    try:
        return inspect.signature(original).bind(*args, **keywords).arguments.get(parameter)
    except (TypeError, ValueError):  # A wrong call, or a function without a signature.
        return keywords.get(parameter)


def _once(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    path = _path(parameter, original, args, keywords) if context.on_all_workers() else None
    place = context.calling_line(path)
    if not place or not (path is None or handles.is_path(path)) or keywords.get("dir_fd") is not None:
        return original(*args, **keywords)
    return context.once(place, functools.partial(original, *args, **keywords), path)


def _tell_of_database(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    path = args[0] if args else keywords.get(parameter)
    if path != ":memory:" and context.calling_line(path) and context.owns(path):
        messages.say_once(
            f"the database {os.fsdecode(path)} is open on every worker, and each adds its rows: write a file, or "
            "a database of each worker."
        )
    return original(*args, **keywords)


def _save_once(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if not context.on_all_workers():
        return original(*args, **keywords)
    path = _path(parameter, original, args, keywords)
    return context.once(original.__qualname__, functools.partial(original, *args, **keywords), path)


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


def _null_writer(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    if context.is_running():
        return original(*args, **keywords)
    return tf.summary.create_noop_writer()


def _own_path(rank: int, parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Keeps what a pipeline writes in files of this worker: two workers cannot write the same."""
    given = inspect.signature(original).bind(*args, **keywords)
    path = given.arguments.get(parameter)
    if handles.is_path(path) and path:
        given.arguments[parameter] = f"{os.fsdecode(path)}.worker{rank}"
    return original(*given.args, **given.kwargs)


@contextlib.contextmanager
def _on_import(stack: contextlib.ExitStack) -> Iterator[None]:
    """Replaces the functions of `_WRITING_IF_IMPORTED`, of modules that are imported later, too."""

    def patch_module(module: Any) -> None:
        for name, kind, functions, parameter in _WRITING_IF_IMPORTED:
            owner = module if kind is None else getattr(module, kind, None)
            if name == module.__name__ and owner is not None:
                replacement = _tell_of_database if name.startswith("sqlite3") else _once
                for function in functions:
                    stack.enter_context(patch(owner, function, functools.partial(replacement, parameter)))

    def around(execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        patch_module(module)

    names = {name for name, *_ in _WRITING_IF_IMPORTED}
    for name in names & set(sys.modules):
        patch_module(sys.modules[name])
    hook = patching.ImportHook(names - set(sys.modules), around)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)


def make_directory(original: Callable[..., str], *args: Any, **keywords: Any) -> str:
    """Makes a directory as `tempfile.mkdtemp`."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    path = context.once(place, lambda: original(*args, **keywords))
    if context.is_first_of_host():
        with context.running(), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    context.note_temporary(path)
    context.meet(f"{place} made")
    return path


def clean_up(original: Callable[..., None], directory: tempfile.TemporaryDirectory) -> None:
    """Removes a directory as `tempfile.TemporaryDirectory.cleanup`, when all workers are done with it."""
    place = context.calling_line()
    if place:
        context.meet(f"{place} cleanup")
    with context.running():  # The first of a host removes it; the others find nothing.
        original(directory)


def make_file(original: Callable[..., tuple[int, str]], *args: Any, **keywords: Any) -> tuple[int, str]:
    """Makes a file as `tempfile.mkstemp`."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    handle = None

    def make() -> str:
        nonlocal handle
        handle, path = original(*args, **keywords)
        return path

    path = context.once(place, make)
    context.note_temporary(path)
    return (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if handle is None else handle), path


def make_named_file(
    original: Callable[..., Any],
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: str | None = None,
    delete: bool = True,
    *,
    errors: str | None = None,
    **keywords: Any,
) -> Any:
    """Makes a file as `tempfile.NamedTemporaryFile`."""
    opened = {"buffering": buffering, "encoding": encoding, "newline": newline, "errors": errors}
    place = context.calling_line()
    if not place:
        given = {"suffix": suffix, "prefix": prefix, "dir": dir, "delete": delete}
        return original(mode, **opened, **given, **keywords)
    handle, path = tempfile.mkstemp(suffix, prefix, dir)
    os.close(handle)
    return _NamedFile(path, mode, opened, delete and keywords.get("delete_on_close", True), delete, place)


class _NamedFile(contextlib.AbstractContextManager):
    """An open temporary file with a name; `deletes`: with the last of its uses, or when it is closed."""

    def __init__(self, path: str, mode: str, options: dict[str, Any], on_close: bool, deletes: bool, place: str):
        self.name, self.delete = path, deletes
        self._on_close, self._place, self._exists = on_close, place, True
        # Not `x`: the file exists.
        self.file = open(path, mode.replace("x", "w"), **options)  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __iter__(self) -> Any:
        return iter(self.file)

    def __exit__(self, *error: Any) -> None:
        self.close()
        self._remove(self.delete)

    def close(self) -> None:
        """Closes the file on every worker, and removes it if it shall not outlive that."""
        self.file.close()
        self._remove(self._on_close)

    def _remove(self, due: bool) -> None:
        if due and self._exists:
            self._exists = False
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.name)
