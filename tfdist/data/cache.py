"""Cached examples: read once, then kept in host memory, or in files on a local disk of each host.

On disk, a cached split is one NumPy file of structured rows. Its name is a hash of the source and its files, the split
and its length. It is written under a temporary name and renamed when complete. A file lock ensures that two jobs or two
workers on a host write it only once; the kernel releases the lock when its holder dies, and the next process writes the
incomplete file again. All files are in a directory that only this user can write.
"""

import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config
from tfdist.config import diff, paths
from tfdist.data import autograph, read_ahead, stream
from tfdist.data.feed import Batch
from tfdist.data.stream import Source

# Examples read at a time while the cache is filled.
_CHUNK = 256


def add_cache(options: config.Data, source: Source | None, split: str | None) -> Any:
    """Returns `source`, of this split, with the cache that `options` set: each example is read once.

    When the first batch is traced, raises ValueError if examples differ in shape, or are not numbers and the cache is
    on disk; OSError if the directory cannot be written, or is full.
    """
    if options.cache == "none" or source is None:
        return source
    return CachedSource(source, options.cache_dir, [diff.to_json(options.source), split])


class CachedSource:
    """A source that caches the examples of another one; see `add_cache`.

    Args:
        directory: the cache directory of the host; None: host memory.
        identity: JSON values that identify source and split.
    """

    def __init__(self, source: Source, directory: str | None, identity: Any):
        self._source, self._load, self._directory = source, autograph.convert_read(source), directory
        facts = [getattr(source, name, str)() for name in ("fingerprint", *(("modified",) if directory else ()))]
        text = json.dumps([identity, len(source), *facts], sort_keys=True)
        self.name = hashlib.sha256(text.encode()).hexdigest()[:20]
        self._arrays = in_memory(self, self._load) if directory is None else None
        self._rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)  # Optional methods of a source: `verify`, `fingerprint` and others.

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids`, int64 [n]; the first call fills the cache."""
        if self._arrays is not None:
            return self._arrays.gather(ids)
        with tf.init_scope(), tf.device("CPU:0"), stream.name_damaged_example(self):
            if self._rows is None:
                self._rows = _open(self.fill())
        types = {name: self._rows.dtype[name] for name in self._rows.dtype.names}

        def read(ids: np.ndarray) -> list[np.ndarray]:
            rows = self._rows[ids]
            return [np.ascontiguousarray(rows[name]) for name in types]

        values = tf.numpy_function(read, [ids], [tf.as_dtype(kind.base) for kind in types.values()], stateful=False)
        return {
            name: tf.ensure_shape(value, [ids.shape[0], *kind.shape])
            for (name, kind), value in zip(types.items(), tf.nest.flatten(values), strict=True)
        }

    def fill(self) -> Path:
        """Writes the split if it is not complete on disk; returns its file. Several processes may call it at once.

        Raises:
            ValueError: examples differ in shape, or are not numbers; names the feature.
            OSError: the directory cannot be written, is full, or belongs to another user; names it.
        """
        # Other users can neither read nor write it: files of theirs could hold any examples.
        folder = paths.local(self._directory, "config.data.cache_dir") / f"tfdist-{os.geteuid()}"
        path = folder / f"{self.name}.npy"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.lstat().st_uid != os.geteuid() or folder.lstat().st_mode & 0o022:
                raise PermissionError(f"another user may write {folder}: remove it")
            with open(path.with_suffix(".lock"), "ab") as lock:  # The lock file stays: removing it would be a race.
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"tfdist: waiting for another process that stores the examples ({path})", file=sys.stderr)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                if _open(path) is None:
                    write(path, chunks(self._load, len(self)), len(self))
        except OSError as error:
            raise type(error)(
                f"config.data.cache_dir={self._directory!r} cannot store the examples: {error.strerror or error}. Free "
                "space in it, choose another directory, or set config.data.cache to none."
            ) from None
        return path


class InMemoryArrays:
    """Examples that are loaded at the first `gather` and kept in host memory as tensors.

    Args:
        load: load(rows) returns the arrays of these examples by name, each [examples, ...]. Runs once, eagerly, on the
            host. The arrays are not copied if TensorFlow can share their memory: do not modify them afterwards.
        rows: the examples.
    """

    def __init__(self, load: Callable[[range], Mapping[str, np.ndarray]], rows: range):
        self._load: Callable[[range], Mapping[str, np.ndarray]] | None = load
        self._rows = rows
        self._tensors: dict[str, tf.Tensor] | None = None

    @tf.autograph.experimental.do_not_convert
    def gather(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids` (int64 [n]) as {name: [n, ...]}."""
        if self._tensors is None:
            # The first call runs while `Dataset.map` traces a graph. Eager tensors created outside of the graph are
            # captured by reference; NumPy arrays would become constants of the graph.
            with tf.init_scope(), tf.device("CPU:0"):
                loaded = self._load(self._rows)
                self._tensors = {key: tf.convert_to_tensor(value) for key, value in loaded.items()}
            self._load = None
        return {key: tf.gather(tensor, ids) for key, tensor in self._tensors.items()}

    def part(self, rows: range) -> "InMemoryArrays":
        """Moves these rows to new arrays, before anything is loaded: `self` is empty afterwards."""
        load, self._load = self._load, None
        return InMemoryArrays(load, self._rows[rows.start : rows.stop : rows.step])


def in_memory(source: Source, read: Callable[[tf.Tensor], Batch]) -> InMemoryArrays:
    """Returns what `read` returns for the ids of `source`, kept in memory; `source.verify` names a damaged example."""

    def load(rows: range) -> dict[str, np.ndarray]:
        joined: dict[str, np.ndarray] = {}
        position = 0
        with stream.name_damaged_example(source):
            # Copied as they arrive: at most one chunk is in memory twice.
            for chunk in chunks(lambda ids: read(rows.start + rows.step * ids), len(rows)):
                for key, values in chunk.items():
                    if key not in joined:
                        joined[key] = np.empty((len(rows), *values.shape[1:]), values.dtype)
                    joined[key][position : position + len(values)] = values
                position += len(values)
        return joined

    return InMemoryArrays(load, range(len(source)))


def chunks(load: Callable[[tf.Tensor], Batch], num_examples: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields `load(ids)` for all ids below `num_examples`, in chunks. Raises ValueError if examples differ in shape."""
    ids = tf.data.Dataset.range(num_examples).batch(_CHUNK)
    load = tf.autograph.experimental.do_not_convert(load)
    loaded = ids.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(1)
    shapes: dict[str, tuple[int, ...]] = {}
    for number, chunk in enumerate(read_ahead.without_autotuning(loaded).as_numpy_iterator()):
        for name, values in chunk.items():
            first, shape = shapes.setdefault(name, values.shape[1:]), values.shape[1:]
            if shape != first:
                raise ValueError(
                    f"Stored examples must have one shape, but those of {name!r} differ: {list(first)} in the first "
                    f"{_CHUNK} examples, {list(shape)} from example {number * _CHUNK} on: pad them to one length."
                )
        yield chunk


def write(path: Path, chunks: Iterable[Mapping[str, np.ndarray]], num_examples: int) -> None:
    """Writes `num_examples` examples to the file `path`, completely or not at all; the caller holds a lock.

    Raises ValueError for strings and for a type that NumPy does not have, such as bfloat16.
    """
    temporary = path.with_suffix(".writing")
    try:
        with open(temporary, "wb") as file:
            kind = None
            for chunk in chunks:
                if kind is None:
                    kind = np.dtype([(name, _type(name, values), values.shape[1:]) for name, values in chunk.items()])
                    header = {"descr": kind.descr, "fortran_order": False, "shape": (num_examples,)}
                    np.lib.format.write_array_header_2_0(file, header)
                rows = np.empty(len(next(iter(chunk.values()))), kind)
                for name, values in chunk.items():
                    rows[name] = values
                file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _type(name: str, values: np.ndarray) -> np.dtype:
    if values.dtype.kind in "OV":
        received = "strings" if values.dtype.kind == "O" else values.dtype.name
        raise ValueError(
            f"config.data.cache_dir stores numbers of NumPy's types only. Received: {received} as {name!r}. Unset it "
            "to cache the examples in memory, or copy the files of the source to the fast disk instead."
        )
    return values.dtype


def _open(path: Path) -> np.ndarray | None:
    """Returns the memory-mapped examples of `write`; None: there is no file, or it is incomplete."""
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
