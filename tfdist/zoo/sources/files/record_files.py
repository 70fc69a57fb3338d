"""Raw records of sharded files: TFRecord (in order, or by an index of their places) and ArrayRecord."""

import contextlib
import functools
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.zoo import splits
from tfdist.zoo.sources.files import from_disk

# Maximum number of open files, and of files indexed in parallel. A process may usually open 1,024 files.
_MAX_OPEN_FILES, _THREADS = 256, 16
# In a TFRecord file, bytes before a record's content (its length and a checksum of it) and after it (a checksum).
_HEADER, _FOOTER = 12, 4


class RecordSpan(NamedTuple):
    """Records [start, start + count) of a file."""

    path: str
    start: int
    count: int


class ArrayRecords:
    """The records of ArrayRecord files, numbered from 0 across the files. Thread-safe."""

    def __init__(self, spans: Sequence[RecordSpan]):
        self._spans = spans
        self._ends = np.cumsum([span.count for span in spans])
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_FILES)(_open_array_record)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns the records `ids`, int64 [n], as bytes, object [n]."""
        records = np.empty(len(ids), object)
        span_of = np.searchsorted(self._ends, ids, side="right")
        for index in np.unique(span_of):
            span = self._spans[index]
            places = np.flatnonzero(span_of == index)
            positions = ids[places] - (self._ends[index] - span.count) + span.start
            for place, record in zip(places, self._open(span.path).read(positions.tolist()), strict=True):
                records[place] = record
        return records


class IndexedRecords:
    """A source of the records of TFRecord files, by an index of their places. Thread-safe.

    A subclass has `read`, which takes the strings of `records` apart, and `fingerprint`.
    """

    def __init__(self, files: Sequence[str], index: np.ndarray, part: splits.Slice, name: str):
        """`index` is (file, first byte, length) of each record, int64 [records, 3]; see `open_index`."""
        self._files, self._index, self._part, self._name = files, index, part, name
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_FILES)(functools.partial(open, mode="rb"))

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        return f"{self._name} {self._part.name}: {len(self)} records of {len(self._files)} files"

    def records(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the records `ids`, int64 [n], as strings [n]."""
        return tf.ensure_shape(tf.numpy_function(self._read, [ids], tf.string, stateful=False), ids.shape)

    def _read(self, ids: np.ndarray) -> np.ndarray:
        records = np.empty(len(ids), object)
        for place, (file, start, length) in enumerate(np.asarray(self._index[ids])):
            opened = self._open(self._files[file])  # Keeps the file open if another thread evicts it from the cache.
            records[place] = os.pread(opened.fileno(), int(length), int(start))
        return records

    def verify(self) -> None:
        """Compares the checksums of all records in the files, which reads do not, and checks every example.

        Raises ValueError, which names the file and the place of the first damaged record.
        """
        for file in np.unique(self._index[:, 0]):
            try:
                tf.data.TFRecordDataset(self._files[file], buffer_size=8 << 20).reduce(0, lambda total, _: total)
            except tf.errors.OpError as error:
                raise ValueError(f"{self._name}: {self._files[file]!r} is damaged: {from_disk.reason(error)}") from None
        for example, (file, start, _) in enumerate(self._index):
            try:
                with tf.device("CPU:0"):
                    self._check(tf.constant([example], tf.int64))
            except (tf.errors.OpError, ValueError, OSError) as error:
                raise ValueError(
                    f"{self._name}: the record at byte {start - _HEADER} of {self._files[file]!r} cannot be read: "
                    f"{from_disk.reason(error)}"
                ) from None

    def _check(self, ids: tf.Tensor) -> None:
        self.read(ids)

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files."""
        return from_disk.fingerprint(len(self._files), self._files.__getitem__)


def tfrecords(spans: Sequence[RecordSpan]) -> tf.data.Dataset:
    """Returns a dataset of the records of TFRecord files, strings, in order."""
    paths, starts, counts = zip(*spans, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), np.int64(starts), np.int64(counts)))
    return dataset.flat_map(
        lambda path, start, count: tf.data.TFRecordDataset(path, buffer_size=8 << 20).skip(start).take(count)
    )


def chunks_of(span: RecordSpan, file_format: str, size: int) -> Iterator[tf.Tensor]:
    """Yields the records of a span in order, string [size] each; raises an error for an unreadable record."""
    if file_format == "tfrecord":
        yield from tfrecords([span]).batch(size)
    else:
        records = ArrayRecords([span])
        for start in range(0, span.count, size):
            yield tf.constant(records.read(np.arange(start, min(start + size, span.count))))


def _open_array_record(path: str):
    from array_record.python.array_record_module import ArrayRecordReader

    # No read-ahead: access is random.
    return ArrayRecordReader(path, options="readahead_buffer_size:0", file_reader_buffer_size=32768)


def open_index(folder: str, split: str, files: list[str], title: str) -> np.ndarray:
    """Returns (file, first byte, length) of every record, int64 [records, 3].

    An index that is stored beside the files, or in the user's cache, is read if sizes and times are those of the files.
    """
    sizes, times = zip(*((found.st_size, found.st_mtime_ns) for found in map(os.stat, files)), strict=True)
    beside = os.path.join(folder or ".", f".tfdist-{split}-{_hash([*map(os.path.basename, files)], sizes, times)}.npy")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    of_paths = _hash([*map(os.path.abspath, files)], sizes, times)
    paths = [beside, os.path.join(cache, "tfdist", f"imagenet-{split}-{of_paths}.npy")]
    for path in paths:
        if os.path.exists(path):
            with contextlib.suppress(ValueError, EOFError):  # Cut off: the host has crashed.
                return np.load(path, mmap_mode="r")
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda item: _locate(*item, title), zip(range(len(files)), files, sizes, strict=True)))
    index = np.concatenate(parts)
    for path in paths:
        with contextlib.suppress(OSError):  # Not writable.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _store(path, index)
            return np.load(path, mmap_mode="r")
    return index


def _hash(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _store(path: str, index: np.ndarray) -> None:
    """Writes the index completely or not at all; several workers may write it at the same time."""
    # A pattern such as "data/*" does not match names that begin with a dot.
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".tfdist-", suffix=".npy", delete=False) as file:
        try:
            np.save(file, index)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _locate(number: int, path: str, size: int, title: str) -> np.ndarray:
    places, position = [], 0
    with open(path, "rb") as file:
        while position < size:
            header = os.pread(file.fileno(), _HEADER, position)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _HEADER else size
            if position + _HEADER + length + _FOOTER > size:
                raise ValueError(
                    f"{title}: {path!r} is cut off or not a TFRecord file, at byte {position}. Download it "
                    "again, or write it without compression."
                )
            places.append((number, position + _HEADER, length))
            position += _HEADER + length + _FOOTER
    return np.asarray(places, np.int64).reshape(-1, 3)
