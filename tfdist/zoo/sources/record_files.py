"""Raw records of sharded files: TFRecord (sequential access) and ArrayRecord (random access)."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Maximum number of open ArrayRecord files; a process may usually open 1,024 files.
_MAX_OPEN_FILES = 256


class Shard(NamedTuple):
    """Records [start, start + count) of a file."""

    path: str
    start: int
    count: int


class ArrayRecords:
    """The records of ArrayRecord files, numbered from 0 across the files. Thread-safe."""

    def __init__(self, shards: Sequence[Shard]):
        self._shards = shards
        self._ends = np.cumsum([shard.count for shard in shards])
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_FILES)(_open_array_record)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns the records `ids`, int64 [n], as bytes, object [n]."""
        records = np.empty(len(ids), object)
        shard_of = np.searchsorted(self._ends, ids, side="right")
        for index in np.unique(shard_of):
            shard = self._shards[index]
            places = np.flatnonzero(shard_of == index)
            positions = ids[places] - (self._ends[index] - shard.count) + shard.start
            for place, record in zip(places, self._open(shard.path).read(positions.tolist()), strict=True):
                records[place] = record
        return records


def tfrecords(shards: Sequence[Shard]) -> tf.data.Dataset:
    """Returns a dataset of the records of TFRecord files, strings, in order."""
    paths, starts, counts = zip(*shards, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), np.int64(starts), np.int64(counts)))
    return dataset.flat_map(
        lambda path, start, count: tf.data.TFRecordDataset(path, buffer_size=8 << 20).skip(start).take(count)
    )


def chunks_of(shard: Shard, file_format: str, size: int) -> Iterator[tf.Tensor]:
    """Yields the records of a shard in order, string [size] each; raises an error for an unreadable record."""
    if file_format == "tfrecord":
        yield from tfrecords([shard]).batch(size)
    else:
        records = ArrayRecords([shard])
        for start in range(0, shard.count, size):
            yield tf.constant(records.read(np.arange(start, min(start + size, shard.count))))


def _open_array_record(path: str):
    from array_record.python.array_record_module import ArrayRecordReader

    # No read-ahead: access is random.
    return ArrayRecordReader(path, options="readahead_buffer_size:0", file_reader_buffer_size=32768)
