"""Cached examples: read once, then kept in host memory, or in files on a local disk of each host.

On disk, a cached split is a directory of NumPy files whose name contains a hash of source, config and length. It is
written under a temporary name and renamed when complete. A file lock lets two jobs or two workers on a host write it
once; the kernel releases the lock when its holder dies, and the next process removes the incomplete directory.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist import config
from tfdist.config import diff
from tfdist.data.feed import Batch, Prepare
from tfdist.data.stream import Source
from tfdist.report import files

# Examples read and prepared at a time while the cache is filled.
CHUNK = 256
_MANIFEST = "manifest.json"
# Seconds between two attempts to lock the files of a split.
_POLL_SECONDS = 0.2


def add_cache(options: config.Data, source: Source, prepare: Prepare, *, training: bool) -> tuple[Source, Prepare]:
    """Returns (source, prepare) with a cache: each example is read once; the batches do not change.

    Args:
        options: `cache` is "raw" (cache the examples of `source`) or "prepared" (cache the output of `prepare`);
            `cache_dir` is the directory, or None for host memory.
        source: the training or evaluation split.
        training: True for the training split; passed to `prepare`.

    Raises:
        ValueError: when the first batch is traced: cache is "prepared" but `prepare` uses its seeds, so that its output
            differs between epochs; or examples differ in shape.
        OSError: when the first batch is traced: the directory cannot be written, or is full.
    """
    identity = [diff.to_json(options.source), options.train_split if training else options.evaluation_split]
    if options.cache == "raw":
        return CachedSource(source, source.read, options.cache_dir, identity), prepare

    def load(ids: tf.Tensor) -> Batch:
        return prepare(source.read(ids), tf.zeros([CHUNK, 2], tf.int64)[: tf.shape(ids)[0]], training=training)

    def check() -> None:
        reject_random(source, prepare, training=training)

    identity += [diff.to_json(options.prepare), training]
    cached_source = CachedSource(source, load, options.cache_dir, identity, check)
    return cached_source, lambda batch, seeds, *, training: batch


def reject_random(source: Source, prepare: Prepare, *, training: bool) -> None:
    """Raises a ValueError if `prepare` uses its seeds."""

    def load(ids: tf.Tensor, seeds: tf.Tensor) -> Batch:
        return prepare(source.read(ids), seeds, training=training)

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.int64)]
    graph = tf.function(load, input_signature=signature, autograph=False).get_concrete_function().graph
    if graph.inputs[1].consumers():
        raise ValueError(
            'config.data.cache="prepared" would store the random output of config.data.prepare, the same in every '
            'epoch. Set config.data.cache to "raw", or remove the augmentation.'
        )


class CachedSource:
    """A source that caches the examples returned by `load`; see `add_cache`.

    Args:
        load: reads, and may prepare, the examples with the given ids.
        directory: the cache directory of the host; None: host memory.
        identity: JSON values that identify source, split and preprocessing.
        check: called before the cache is filled; raises if the examples cannot be cached.
    """

    def __init__(
        self,
        source: Source,
        load: Callable[[tf.Tensor], Batch],
        directory: str | None,
        identity: Any,
        check: Callable[[], None] = lambda: None,
    ):
        self._source, self._load, self._directory, self._check = source, load, directory, check
        self.num_classes = getattr(source, "num_classes", None)
        for name in ("fingerprint", "modified"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        text = json.dumps([identity, len(source), getattr(source, "fingerprint", str)()], sort_keys=True, default=repr)
        # Each user has files of his own: those of others could hold any examples.
        self.name = f"tfdist-{os.geteuid()}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
        self._lock = threading.Lock()
        self._arrays = InMemoryArrays(self._load_all) if directory is None else None
        self._files: dict[str, np.ndarray | ByteStrings] | None = None

    def __len__(self) -> int:
        return len(self._source)

    def verify(self) -> None:
        """Raises the source's error for its first damaged example, if any."""
        getattr(self._source, "verify", lambda: None)()

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids`, int64 [n]; the first call fills the cache."""
        if self._arrays is not None:
            return self._arrays.gather(ids)
        with self._lock, tf.init_scope(), tf.device("CPU:0"), self._name_damaged_example():
            if self._files is None:
                self._files = open_files(self.fill())
        return {name: _gather(array, ids) for name, array in self._files.items()}

    def _load_all(self) -> dict[str, np.ndarray]:
        self._check()
        with self._name_damaged_example():
            return collect(_chunks(self._load, len(self)), len(self))

    @contextlib.contextmanager
    def _name_damaged_example(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError:
            self.verify()
            raise

    def fill(self) -> Path:
        """Writes the split if it is not complete on disk; returns its directory. Several processes may call it at once.

        Raises:
            ValueError: examples differ in shape; names the feature.
            OSError: the directory cannot be written, or is full; names it.
        """
        self._check()
        folder = Path(os.path.expandvars(self._directory)).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _hold_lock(folder / f"{self.name}.lock"):
                if open_files(folder / self.name) is None:
                    self._write(folder)
        except OSError as error:
            raise type(error)(
                f"config.data.cache_dir={self._directory!r} cannot store the examples: {error.strerror or error}. Free "
                "space in it, choose another directory, or set config.data.cache to none."
            ) from None
        return folder / self.name

    def _write(self, folder: Path) -> None:
        for left in (*folder.glob(f"{self.name}.writing-*"), folder / self.name):
            shutil.rmtree(left, ignore_errors=True)
        temporary = folder / f"{self.name}.writing-{os.getpid()}"
        temporary.mkdir(mode=0o700)
        try:
            kinds = write_files(temporary, _chunks(self._load, len(self)), len(self))
            sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
            files.write_json(temporary / _MANIFEST, {"examples": len(self), "arrays": kinds, "bytes": sizes})
            os.replace(temporary, folder / self.name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


class InMemoryArrays:
    """Arrays that are loaded at the first `gather` and kept in host memory as tensors.

    Args:
        load: returns the arrays by name, each [examples, ...]. Runs once, eagerly, on the host. The arrays are not
            copied if TensorFlow can share their memory: do not modify them afterwards.
    """

    def __init__(self, load: Callable[[], Mapping[str, np.ndarray | tf.Tensor]]):
        self._load = load
        self._lock = threading.Lock()
        self._tensors: dict[str, tf.Tensor] | None = None

    @tf.autograph.experimental.do_not_convert
    def gather(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids` (int64 [n]) as {name: [n, ...]}."""
        with self._lock:
            if self._tensors is None:
                # The first call runs while `Dataset.map` traces a graph. Eager tensors created outside of the graph
                # are captured by reference; NumPy arrays would become constants of the graph.
                with tf.init_scope(), tf.device("CPU:0"):
                    self._tensors = {key: tf.convert_to_tensor(value) for key, value in self._load().items()}
                self._load = None
        return {key: tf.gather(tensor, ids) for key, tensor in self._tensors.items()}

    def part(self, rows: range) -> "InMemoryArrays":
        """Moves these rows to new arrays, before anything is loaded: `self` is empty then.

        All rows are in memory while they are loaded, and those of the part afterwards.
        """
        load, self._load = self._load, None

        def load_part() -> dict[str, np.ndarray]:
            return {
                key: np.ascontiguousarray(value[rows.start : rows.stop : rows.step]) for key, value in load().items()
            }

        return InMemoryArrays(load_part)


def collect(chunks: Iterable[Mapping[str, np.ndarray]], num_examples: int) -> dict[str, np.ndarray]:
    """Returns chunks of examples, {name: [chunk, ...]}, joined to {name: [num_examples, ...]}.

    Each chunk is copied into the result as it arrives, so that at most one chunk is in memory twice.
    """
    joined: dict[str, np.ndarray] = {}
    position = 0
    for chunk in chunks:
        for key, values in chunk.items():
            if key not in joined:
                joined[key] = np.empty((num_examples, *values.shape[1:]), values.dtype)
            joined[key][position : position + len(values)] = values
        position += len(values)
    assert position == num_examples, f"{position} examples instead of {num_examples}"
    return joined


def fits(num_bytes: int, limit_mb: float) -> bool:
    """Returns True if `num_bytes` is at most `limit_mb` MiB."""
    return num_bytes <= limit_mb * 2**20


class ByteStrings:
    """Byte strings of any length in one file; string i is content[ends[i - 1] : ends[i]]."""

    def __init__(self, folder: Path, name: str):
        self._ends = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
        self._content = np.memmap(folder / f"{name}.bytes", mode="r") if self._ends[-1] else b""

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        strings = np.empty(len(ids), object)
        for place, example in enumerate(ids):
            start = self._ends[example - 1] if example else 0
            strings[place] = bytes(self._content[start : self._ends[example]])
        return strings


def write_files(folder: Path, chunks: Iterator[dict[str, np.ndarray]], num_examples: int) -> dict[str, str]:
    """Writes the chunks, joined, to one .npy file per name; returns name -> kind.

    The kind is "numbers", "bytes" (strings), or the name of a dtype that NumPy's format does not support, such as
    bfloat16, which is stored as unsigned integers.
    """
    files: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    ends: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            for name, values in chunk.items():
                if name not in kinds:
                    if not re.fullmatch(r"\w+", name):
                        raise ValueError(f"On disk, names must be letters, digits and underscores. Received: {name!r}")
                    kinds[name] = _kind(values.dtype)
                    suffix = "bytes" if kinds[name] == "bytes" else "npy"
                    files[name] = stack.enter_context(open(folder / f"{name}.{suffix}", "wb"))
                    ends[name] = []
                    if kinds[name] != "bytes":
                        shape = (num_examples, *values.shape[1:])
                        stored = values.dtype if kinds[name] == "numbers" else np.dtype(f"u{values.itemsize}")
                        described = {"descr": stored.str, "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_2_0(files[name], described)
                if kinds[name] != "bytes":
                    files[name].write(np.ascontiguousarray(values).tobytes())
                else:
                    for string in values:
                        files[name].write(string)
                        ends[name].append((ends[name][-1] if ends[name] else 0) + len(string))
        for name, kind in kinds.items():
            if kind == "bytes":
                files[f"{name}.ends"] = stack.enter_context(open(folder / f"{name}.ends.npy", "wb"))
                np.save(files[f"{name}.ends"], np.asarray(ends[name], np.int64))
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return kinds


def _kind(dtype: np.dtype) -> str:
    return {"O": "bytes", "V": dtype.name}.get(dtype.kind, "numbers")


def open_files(folder: Path) -> dict[str, Any] | None:
    """Opens the files of `write_files`: name -> memory-mapped array, or `ByteStrings`.

    Returns None if they are not complete, are damaged, or are not this user's own.
    """
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not (folder / _MANIFEST).is_file():
            return None
        manifest = json.loads((folder / _MANIFEST).read_text())
        if any((folder / name).stat().st_size != size for name, size in manifest["bytes"].items()):
            return None
        opened = {
            name: ByteStrings(folder, name) if kind == "bytes" else _numbers(folder, name, kind)
            for name, kind in manifest["arrays"].items()
        }
        return opened or None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _numbers(folder: Path, name: str, kind: str) -> np.ndarray:
    array = np.load(folder / f"{name}.npy", mmap_mode="r")
    return array if kind == "numbers" else array.view(getattr(ml_dtypes, kind))


@tf.autograph.experimental.do_not_convert
def _gather(array: Any, ids: tf.Tensor) -> tf.Tensor:
    dtype = tf.string if isinstance(array, ByteStrings) else tf.as_dtype(array.dtype)
    values = tf.numpy_function(lambda ids: array[ids], [ids], dtype, stateful=False)
    shape = () if isinstance(array, ByteStrings) else array.shape[1:]
    return tf.ensure_shape(values, [ids.shape[0], *shape])


def _chunks(load: Callable[[tf.Tensor], Batch], num_examples: int) -> Iterator[dict[str, np.ndarray]]:
    ids = tf.data.Dataset.range(num_examples).batch(CHUNK)
    chunks = ids.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(1)
    shapes: dict[str, tuple[int, ...]] = {}
    for number, chunk in enumerate(chunks.as_numpy_iterator()):
        for name, values in chunk.items():
            first, shape = shapes.setdefault(name, values.shape[1:]), values.shape[1:]
            if shape != first:
                raise ValueError(
                    f"Cached examples must have one shape, but those of {name!r} differ: {list(first)} in the first "
                    f"{CHUNK} examples, {list(shape)} from example {number * CHUNK} on. Pad them to one length in "
                    "the source or in prepare, or set config.data.cache to none."
                )
        yield chunk


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Holds a file lock between the processes of a host. The file remains: removing it would be a race."""
    with open(path, "wb") as file:
        announced = False
        # Not one call that waits: it would not return for a signal, such as a second Ctrl-C.
        while not _try_lock(file):
            if not announced:
                print(f"tfdist: waiting for another process that stores the examples ({path})", file=sys.stderr)
            announced = True
            time.sleep(_POLL_SECONDS)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
