"""Files that a script opens for writing: the worker that owns a file writes it, and the others discard the same bytes.

All workers meet before the file is opened, and when it is flushed or closed: so the next line finds it complete on
every worker. Where a worker does not own the file, what the script gets behaves alike: positions, lengths and reading
back are those of the file. Records of `logging` are flushed without a meeting, as often one of them depends on the
time; a line that reads a file which is open for writing meets instead.
"""

import contextlib
import inspect
import io
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tfdist.keras_fit.script import context

# Path of a file that the script has open for writing -> what it got.
_written: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def is_path(value: Any) -> bool:
    """Returns whether a value is the name of a file."""
    return isinstance(value, str | bytes | os.PathLike)


def open_file(original: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
    """Opens as `open`."""
    # An `opener` may open another file, as that of `tempfile` does.
    if not is_path(file) or os.fsdecode(file) == os.devnull or keywords.get("opener") is not None:
        return original(file, mode, *args, **keywords)
    if not set("wax+") & set(mode):
        if _written and _key(file) in _written:
            _meet_at("read", file)
        return original(file, mode, *args, **keywords)
    place = context.calling_line(file)
    if not place:
        return original(file, mode, *args, **keywords)
    opened = None if context.owns(file) else _stand_in(original, file, mode, args, keywords)
    try:
        opened = context.make_once(place, lambda: original(file, mode, *args, **keywords), file) or opened
    except Exception:
        if opened is not None:
            opened.close()
        raise
    _meet_when_closed(opened, file, place)
    return opened


def _key(file: Any) -> str:
    return os.path.realpath(os.fsdecode(file))


class _Discarding(io.FileIO):
    """An empty temporary file without a name: it discards what is written, and only its position moves."""

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.seek(size, os.SEEK_CUR)
        return size


def _stand_in(original: Callable[..., Any], file: Any, mode: str, args: tuple, keywords: dict) -> Any:
    """Returns what stands for a file on a worker that does not write it; a copy, if `mode` lets a script read."""
    with context.running(), tempfile.TemporaryFile() as nameless:
        handle = os.dup(nameless.fileno())
    given = inspect.signature(open).bind(file, mode, *args, **keywords).arguments
    buffering, text = given.get("buffering", -1), "b" not in mode
    raw = io.FileIO(handle, "rb+") if "+" in mode else _Discarding(handle, "rb+")
    if "+" in mode and ("r" in mode or "a" in mode):
        with contextlib.suppress(FileNotFoundError), original(file, "rb") as old:
            while block := old.read(2**20):
                raw.write(block)
    elif "a" in mode:
        with contextlib.suppress(FileNotFoundError):
            raw.truncate(os.path.getsize(file))
    raw.seek(0, os.SEEK_END if "a" in mode else os.SEEK_SET)
    raw.name = file
    if buffering == 0:
        return raw
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if not text:
        return buffered
    options = {name: given.get(name) for name in ("encoding", "errors", "newline")}
    made = io.TextIOWrapper(buffered, **options, line_buffering=buffering == 1)
    made.mode = mode
    return made


def _meet_when_closed(file: Any, path: Any, place: str) -> None:
    """Lets all workers meet when a line of the script closes or flushes `file`."""
    # The file must not refer to itself: it is closed when its last reference goes, as usual.
    reference, kind = weakref.ref(file), type(file)

    def close() -> None:
        opened = reference()
        if opened is not None and not opened.closed:
            vars(opened).pop("flush")  # Called by `close`.
            kind.close(opened)
            _written.pop(_key(path), None)
            _meet_at(f"close {place}", path)

    def flush() -> None:
        opened = reference()
        if opened is not None:
            kind.flush(opened)
            caller = inspect.currentframe().f_back
            if not opened.closed and caller is not None and caller.f_globals.get("__name__") != "logging":
                _meet_at(f"flush {place}", path)

    file.close, file.flush = close, flush
    _written[_key(path)] = file


def _meet_at(what: str, path: Any) -> None:
    place = context.calling_line(path)
    if place:
        context.meet(f"{what} {place}")


class _OfTensorFlow(contextlib.AbstractContextManager):
    """A writer of TensorFlow; on other workers None, which takes everything."""

    def __init__(self, writer: Any, path: Any, place: str):
        self._writer, self._path, self._place = writer, path, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name) if self._writer is not None else lambda *args, **keywords: None

    def __exit__(self, *error: Any) -> None:
        self.close()

    def flush(self) -> None:
        """Writes what was given so far; all workers meet."""
        if self._writer is not None:
            self._writer.flush()
        _meet_at(f"flush {self._place}", self._path)

    def close(self) -> None:
        """Closes the file; all workers meet."""
        if self._writer is not None:
            self._writer.close()
        _meet_at(f"close {self._place}", self._path)


def open_of_tensorflow(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Opens as `tf.io.TFRecordWriter` and `tf.io.gfile.GFile`."""
    path = args[0] if args else next(iter(keywords.values()))
    place = context.calling_line(path)
    reads = original.__name__ != "TFRecordWriter" and not set("wa+") & set(str([*args[1:2], keywords.get("mode", "")]))
    if not place or reads:
        return original(*args, **keywords)
    writer = context.make_once(place, lambda: original(*args, **keywords), path)
    return _OfTensorFlow(writer, path, place)


def open_h5py(original: Callable[..., None], file: h5py.File, name: Any, mode: str = "r", *args: Any, **keywords: Any):
    """Opens an HDF5 file; one that the script writes is in memory on other workers."""
    place = context.calling_line(name) if mode != "r" and is_path(name) else ""
    if not place:
        original(file, name, mode, *args, **keywords)
        return
    if not context.owns(name):
        original(file, name, mode, *args, **{**keywords, "driver": "core", "backing_store": False})
    context.once(place, lambda: original(file, name, mode, *args, **keywords), name)


def close_h5py(original: Callable[..., None], file: h5py.File) -> None:
    """Closes an HDF5 file."""
    path = file.filename if bool(file) and file.mode != "r" else None
    original(file)
    if path is not None:
        _meet_at("close", path)


def map_file(original: Callable[..., Any], kind: type, filename: Any, *args: Any, **keywords: Any) -> np.memmap:
    """Maps a file as `numpy.memmap`: its owner makes it, and all workers write the same values into it."""
    given = inspect.signature(original).bind(kind, filename, *args, **keywords)
    mode = given.arguments.get("mode", "r+")
    place = context.calling_line(filename) if is_path(filename) and mode not in ("r", "c", "readonly") else ""
    if not place:
        return original(kind, filename, *args, **keywords)
    made = context.make_once(place, lambda: original(kind, filename, *args, **keywords), filename)
    if made is None:
        given.arguments["mode"] = "r+"
        with context.running():
            made = original(*given.args, **given.kwargs)
    return made


def save_checkpoint(original: Callable[..., str], checkpoint: tf.train.Checkpoint, *args: Any, **keywords: Any) -> Any:
    """Saves as `tf.train.Checkpoint`, and counts on every worker."""
    place = context.calling_line()
    if not place:
        return original(checkpoint, *args, **keywords)
    path = context.once(place, lambda: original(checkpoint, *args, **keywords))
    if not context.owns(None) and original.__name__ == "save":
        with context.running():
            checkpoint.save_counter.assign_add(1)
    return path


# What each manager of checkpoints was made with.
_managers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def make_manager(
    original: Callable[..., None],
    manager: tf.train.CheckpointManager,
    checkpoint: tf.train.Checkpoint,
    *args: Any,
    **keywords: Any,
) -> None:
    """Initialises a `tf.train.CheckpointManager`."""
    original(manager, checkpoint, *args, **keywords)
    _managers[manager] = (lambda: original(manager, checkpoint, *args, **keywords), checkpoint)


def save_by_manager(original: Callable[..., Any], manager: tf.train.CheckpointManager, *args: Any, **keywords: Any):
    """Saves as `tf.train.CheckpointManager`; afterwards the managers of all workers know the same files."""
    place = context.calling_line()
    if not place or manager not in _managers:
        return original(manager, *args, **keywords)
    path = context.once(place, lambda: original(manager, *args, **keywords))
    make, checkpoint = _managers[manager]
    if not context.owns(None):
        with context.running():
            checkpoint.save_counter.assign_add(1)
            make()  # It reads from the directory what the chief has saved.
    context.meet(place)
    return path
