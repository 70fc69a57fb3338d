"""Only the chief prints and writes files; the other workers of an unchanged script wait until a file is written.

A file is written once if the script writes it in its main thread, by `open` or a function in the tables below, also if
a library such as NumPy, Pillow or Matplotlib calls these for the script. In /tmp and /dev/shm it is written once per
host. All workers wait for each other before and after the write, or when the file is closed, so the next line finds the
file on every worker. A write that fails on the chief fails on all. The other workers open a scratch file instead, which
is then removed. Files of `tempfile` are private: each worker has its own directory for them.

Not covered: writes of other threads, of input functions and of child processes, of libraries that write in compiled
code, standard error, and `os.open`.
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
import sqlite3.dbapi2
import sys
import tarfile
import tempfile
import types
import urllib.request
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import patching
from tfdist.config.patching import patch
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import script_state

# Owner, functions, and the name of the parameter for the path. Calls that pass an open file instead are not changed.
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
    (np, ("save", "savez", "savez_compressed"), "file"),  # Other workers need not write large arrays.
    (np, ("savetxt",), "fname"),  # Refers to `io.open` since NumPy's import.
    (keras.utils, ("save_img",), "path"),
    (keras.utils, ("plot_model",), "to_file"),
    (tf.io.gfile, ("makedirs", "mkdir", "remove", "rmtree"), "path"),
    (tf.io.gfile, ("copy", "rename"), "dst"),
    (tf.io, ("write_file",), "filename"),
    (tf.saved_model, ("save",), "export_dir"),
    (tf.data.Dataset, ("save",), "path"),
    (keras.Model, ("save", "save_weights", "export"), "filepath"),
    (keras.saving, ("save_model",), "filepath"),
    (keras.models, ("save_model",), "filepath"),
)
# Path of a file that the script has open for writing -> the file object.
_written: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def write_once(cluster: Cluster) -> Iterator[None]:
    """Lets one worker print and write for all in the block, which runs a script."""
    if cluster.num_workers == 1:
        yield
        return
    replaced: list[tuple[Any, Sequence[str], Callable[..., Any]]] = [
        *((owner, names, functools.partial(_once, parameter)) for owner, names, parameter in _WRITING),
        *((owner, ["open"], _open) for owner in (builtins, io)),
        (tarfile, ["bltn_open"], _open),  # Refers to `open` since its import.
        (bz2, ["_builtin_open"], _open),
        *((kind, ["__init__"], _open_object) for kind in (h5py.File, tf.io.gfile.GFile, tf.io.TFRecordWriter)),
        (tf.io.TFRecordWriter, ["__exit__"], lambda original, file, *error: file.close()),  # The original is C++.
        (np.memmap, ["__new__"], _map_file),
        (tf.train.Checkpoint, ["save", "write"], _save_checkpoint),
        (tf.train.CheckpointManager, ["save"], _save_checkpoint),
        *((module, ["get_file"], _get_file) for module in _modules_with(keras.utils.get_file)),
        *((module, ["connect"], _warn_of_database) for module in (sqlite3, sqlite3.dbapi2)),
    ]
    if not cluster.is_chief:
        replaced += [
            (tf.summary, ["create_file_writer"], lambda *given, **keywords: tf.summary.create_noop_writer()),
            (tf.data.Dataset, ["cache"], functools.partial(_own_path, cluster.rank, "filename")),
            (tf.data.Dataset, ["snapshot"], functools.partial(_own_path, cluster.rank, "path")),
            (tf.profiler.experimental, ["start", "stop"], lambda original, *args, **keywords: None),
        ]
    with contextlib.ExitStack() as stack:
        if not cluster.is_chief:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(_own_temporary_files(cluster.is_chief))
        for owner, names, function in replaced:
            for name in names:
                if hasattr(owner, name):
                    stack.enter_context(patch(owner, name, function))
        yield


@contextlib.contextmanager
def _own_temporary_files(is_chief: bool) -> Iterator[None]:
    """In the block, `tempfile` makes files and directories of this worker alone."""
    place = tempfile.mkdtemp(prefix="w")
    patching.replace_attribute(tempfile, "tempdir", place)
    try:
        yield
    finally:
        if not is_chief:
            shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # Files that the script leaves on the chief stay.
            os.rmdir(place)
        patching.replace_attribute(tempfile, "tempdir", None)


def _path(parameter: str, original: Callable[..., Any], args: tuple, keywords: dict) -> Any:
    try:
        return inspect.signature(original).bind(*args, **keywords).arguments.get(parameter)
    except (TypeError, ValueError):  # A wrong call, or a function without a signature.
        return keywords.get(parameter)


def _once(parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    path = _path(parameter, original, args, keywords) if script_state.on_all_workers() else None
    # A model that a callback of Keras saves in a hidden directory is a file of the script, too.
    place = script_state.line_of_script(path, for_library=parameter == "filepath")
    if not place or keywords.get("dir_fd") is not None:
        return original(*args, **keywords)
    return script_state.call_on_owner(f"{place} {original.__name__}", lambda: original(*args, **keywords), path)


def _warn_of_database(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    path = args[0] if args else keywords["database"]
    if path != ":memory:" and script_state.line_of_script(path) and script_state.writes_here(path):
        messages.log_once(
            f"the database {os.fsdecode(path)} is open on every worker, and each adds its rows: write a file, or "
            "one database for each worker."
        )
    return original(*args, **keywords)


def _open(original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
    """Replaces `open`."""
    # An `opener` may open another file, as that of `tempfile` does.
    reads = not set("wax+") & set(mode)
    place = "" if keywords.get("opener") is not None or (reads and not _written) else script_state.line_of_script(file)
    if not place:
        return original(file, mode, *args, **keywords)
    key = os.path.realpath(os.fsdecode(file))
    if reads:
        if key in _written and not _written[key].closed:
            script_state.barrier(f"read {place}", file)
        return original(file, mode, *args, **keywords)

    def open_file(scratch: str | None) -> Any:
        if scratch is not None:
            keywords["opener"] = lambda path, flags: os.open(scratch, flags | os.O_CREAT, 0o600)
        return original(file, mode, *args, **keywords)

    _written[key] = opened = _open_once(place, file, mode, open_file)
    return opened


def _open_object(original: Callable[..., None], file: Any, *args: Any, **keywords: Any) -> None:
    """Replaces the constructors of `h5py.File`, `tf.io.TFRecordWriter` and `tf.io.gfile.GFile`."""
    given = inspect.signature(original).bind(file, *args, **keywords)
    given.apply_defaults()
    name = "path" if "path" in given.arguments else "name"
    path, mode = given.arguments[name], given.arguments.get("mode", "w")
    place = script_state.line_of_script(path) if mode not in ("r", "rb") else ""

    def open_file(scratch: str | None) -> Any:
        if scratch is not None:
            given.arguments[name] = scratch
        original(*given.args, **given.kwargs)
        return file

    if place:
        _open_once(place, path, mode, open_file)
    else:
        open_file(None)


def _open_once(place: str, path: Any, mode: str, open_file: Callable[[str | None], Any]) -> Any:
    """Opens a file on the worker that writes it, and a scratch file on the others; all wait when it is closed.

    Args:
        open_file: opens this scratch file; None: `path`. Returns an object with a method `close`.
    """
    scratch = None if script_state.writes_here(path) else tempfile.mktemp()
    if scratch is not None and not set("wx") & set(mode):  # The mode keeps the content.
        with script_state.tfdist_code(), contextlib.suppress(FileNotFoundError):
            shutil.copyfile(path, scratch)
    opened = script_state.call_on_owner(f"{place} open", lambda: open_file(None), path)
    if scratch is not None:
        opened = open_file(scratch)
        with script_state.tfdist_code(), contextlib.suppress(FileNotFoundError):  # It exists until it is closed.
            os.unlink(scratch)
    # The file must not refer to itself: it is closed when its last reference goes, as usual.
    reference, kind = weakref.ref(opened), type(opened)

    def close() -> None:
        opened = reference()
        if opened is not None and vars(opened).pop("close", None) is not None:
            kind.close(opened)
            if place := script_state.line_of_script(path):
                script_state.barrier(f"close {place}", path)

    opened.close = close
    return opened


def _map_file(original: Callable[..., Any], kind: type, filename: Any, *args: Any, **keywords: Any) -> np.memmap:
    """Replaces `numpy.memmap`: the owner makes the file, and all workers write the same values into it."""
    given = inspect.signature(original).bind(kind, filename, *args, **keywords)
    reads = given.arguments.get("mode", "r+") in ("r", "c", "readonly")
    place = "" if reads else script_state.line_of_script(filename)
    if not place:
        return original(kind, filename, *args, **keywords)
    made = script_state.call_on_owner(place, lambda: original(kind, filename, *args, **keywords), filename)
    if made is None:
        given.arguments["mode"] = "r+"
        with script_state.tfdist_code():
            made = original(*given.args, **given.kwargs)
    return made


def _save_checkpoint(original: Callable[..., Any], saved: Any, *args: Any, **keywords: Any) -> Any:
    """Replaces `save` and `write` of `tf.train.Checkpoint` and its manager, and notes the save on all workers."""
    manages = isinstance(saved, tf.train.CheckpointManager)
    path = saved.directory if manages else _path("file_prefix", original, (saved, *args), keywords)
    place = script_state.line_of_script(path)
    if not place:
        return original(saved, *args, **keywords)
    written = script_state.call_on_owner(place, lambda: original(saved, *args, **keywords), path)
    if written and not script_state.writes_here(path) and original.__name__ == "save":
        with script_state.tfdist_code():
            (saved.checkpoint if manages else saved).save_counter.assign_add(1)
            if manages:
                saved.__init__(saved.checkpoint, saved.directory, None)  # It reads the directory.
    return written


def _modules_with(function: Callable[..., Any]) -> list[types.ModuleType]:
    """Returns the modules that hold a function by its name, such as those of Keras' datasets."""
    modules = [one for one in [*sys.modules.values()] if isinstance(one, types.ModuleType)]
    return [one for one in modules if vars(one).get(function.__name__) is function]


def _get_file(original: Callable[..., str], *args: Any, **keywords: Any) -> str:
    """Downloads on the chief, then on the first worker of each other host; all other workers then find the file."""
    place = script_state.line_of_script(for_library=True)
    if not place:
        return original(*args, **keywords)
    script_state.call_on_owner(place, lambda: original(*args, **keywords))
    for turn in (script_state.is_first_of_host(), True):
        if turn:
            with script_state.tfdist_code():
                found = original(*args, **keywords)
        script_state.barrier(f"{place} downloaded")
    return found


def _own_path(rank: int, parameter: str, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Makes a pipeline write to a path of this worker: two workers cannot write the same file."""
    given = inspect.signature(original).bind(*args, **keywords)
    path = given.arguments.get(parameter)
    if path and isinstance(path, str | os.PathLike):
        given.arguments[parameter] = f"{os.fsdecode(path)}.worker{rank}"
    return original(*given.args, **given.kwargs)
