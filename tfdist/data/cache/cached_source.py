"""Cached examples: read once, then kept in host memory, or in files on a local disk of each host.

On disk, a cached split is a directory of NumPy files whose name contains a hash of source, config and length. It is
written under a temporary name and renamed when complete. A file lock lets two jobs or two workers on a host write it
once; the kernel releases the lock when its holder dies, and the next process removes the incomplete directory. All is
in a directory of this user, which no other can write.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config
from tfdist.config import diff, paths
from tfdist.data import autograph, stream
from tfdist.data.cache import example_files
from tfdist.data.feed import Batch, Prepare
from tfdist.data.stream import Source

# Examples read and prepared at a time while the cache is filled.
CHUNK = 256


def add_cache(options: config.Data, source: Source | None, prepare: Prepare, *, training: bool) -> tuple[Any, Prepare]:
    """Returns (source, prepare) with a cache: each example is read once; the batches do not change.

    Args:
        options: `cache` is "none", "raw" (cache the examples of `source`) or "prepared" (cache the output of
            `prepare`); `cache_dir` is the directory, or None for host memory.
        source: the training or evaluation split; None: there is none.
        training: True for the training split; passed to `prepare`.

    Raises:
        ValueError: cache is "prepared" but `prepare` uses its seeds, so that its output differs between epochs; when
            the first batch is traced: examples differ in shape.
        OSError: when the first batch is traced: the directory cannot be written, or is full.
    """
    if options.cache == "none" or source is None:
        return source, prepare
    identity = [diff.to_json(options.source), options.train_split if training else options.evaluation_split]
    read = autograph.convert_read(source)
    if options.cache == "raw":
        return CachedSource(source, read, options.cache_dir, identity), prepare
    load = _without_seeds(read, autograph.convert_prepare(prepare), training=training)
    identity += [diff.to_json(options.prepare), training]
    return CachedSource(source, load, options.cache_dir, identity), lambda batch, seeds, *, training: batch


def _without_seeds(
    read: Callable[[tf.Tensor], Batch], prepare: Prepare, *, training: bool
) -> Callable[[tf.Tensor], Batch]:
    """Returns a function of ids that reads and prepares; raises a ValueError if `prepare` uses its seeds."""

    def load(ids: tf.Tensor, seeds: tf.Tensor) -> Batch:
        return prepare(read(ids), seeds, training=training)

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.int64)]
    traced = tf.function(load, input_signature=signature, autograph=False).get_concrete_function()
    if traced.graph.inputs[1].consumers():
        raise ValueError(
            'config.data.cache="prepared" would store the random output of config.data.prepare, the same in every '
            'epoch. Set config.data.cache to "raw", or remove the augmentation.'
        )
    return lambda ids: traced(ids, tf.zeros([tf.size(ids), 2], tf.int64))


class CachedSource:
    """A source that caches the examples returned by `load`; see `add_cache`.

    Args:
        load: reads, and may prepare, the examples with the given ids.
        directory: the cache directory of the host; None: host memory.
        identity: JSON values that identify source, split and preprocessing.
    """

    def __init__(self, source: Source, load: Callable[[tf.Tensor], Batch], directory: str | None, identity: Any):
        self._source, self._load, self._directory = source, load, directory
        self.num_classes = getattr(source, "num_classes", None)
        for name in ("fingerprint", "modified"):
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        facts = [getattr(source, name, str)() for name in ("fingerprint", *(("modified",) if directory else ()))]
        text = json.dumps([identity, len(source), *facts], sort_keys=True)
        self.name = hashlib.sha256(text.encode()).hexdigest()[:20]
        self._lock = threading.Lock()
        self._arrays = in_memory(self, load) if directory is None else None
        self._files: dict[str, example_files.Column] | None = None

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
        with self._lock, tf.init_scope(), tf.device("CPU:0"), stream.name_damaged_example(self):
            if self._files is None:
                self._files = example_files.open_files(self.fill())
        return example_files.gather(self._files, ids)

    def fill(self) -> Path:
        """Writes the split if it is not complete on disk; returns its directory. Several processes may call it at once.

        Raises:
            ValueError: examples differ in shape; names the feature.
            OSError: the directory cannot be written, is full, or has that of another user; names it.
        """
        # Others can neither read nor write it: their files could hold any examples.
        folder = paths.local(self._directory, "config.data.cache_dir") / f"tfdist-{os.geteuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.lstat().st_uid != os.geteuid():
                raise PermissionError(f"{folder} is another user's: remove it")
            with example_files.hold_lock(folder / f"{self.name}.lock"):
                if example_files.read_manifest(folder / self.name) is None:
                    chunks = example_files.chunks(self._load, len(self), CHUNK)
                    example_files.write(folder / self.name, chunks, len(self))
        except OSError as error:
            raise type(error)(
                f"config.data.cache_dir={self._directory!r} cannot store the examples: {error.strerror or error}. Free "
                "space in it, choose another directory, or set config.data.cache to none."
            ) from None
        return folder / self.name


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
                    loaded = self._load(self._rows)
                    self._tensors = {key: tf.convert_to_tensor(value) for key, value in loaded.items()}
                self._load = None
        return {key: tf.gather(tensor, ids) for key, tensor in self._tensors.items()}

    def part(self, rows: range) -> "InMemoryArrays":
        """Moves these rows to new arrays, before anything is loaded: `self` is empty then."""
        load, self._load = self._load, None
        return InMemoryArrays(load, self._rows[rows.start : rows.stop : rows.step])


def in_memory(source: Source, read: Callable[[tf.Tensor], Batch]) -> InMemoryArrays:
    """Returns what `read` returns for the ids of `source`, kept in memory; `source.verify` names a damaged example."""

    def load(rows: range) -> dict[str, np.ndarray]:
        with stream.name_damaged_example(source):
            found = example_files.chunks(lambda ids: read(rows.start + rows.step * ids), len(rows), CHUNK)
            return collect(found, len(rows))

    return InMemoryArrays(load, range(len(source)))


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
    return joined
