"""Records of sharded files in any order: TFRecord, by an index of their places, and ArrayRecord."""

import contextlib
import functools
import io
import json
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfdist.report import files as files_lib
from tfdist.zoo import splits
from tfdist.zoo.sources.files import file_source

# Maximum number of open files, and of files indexed in parallel. A process may usually open 1,024 files.
_MAX_OPEN_FILES, _THREADS = 256, 16
# In a TFRecord file, bytes before a record's content (its length and a checksum of it) and after it (a checksum).
_HEADER, _FOOTER = 12, 4


class RecordSource(file_source.FileSource):
    """A source of records. A subclass has `fingerprint`, and `decode`, which parses records, strings [n].

    Args:
        places: int64 [records, 3], for TFRecord files as `open_index` returns it: (file, first byte, length). With
            `array_record`: (file, number of the record, 0).
    """

    def __init__(
        self, name: str, part: splits.Slice, files: Sequence[str], places: np.ndarray, *, array_record: bool = False
    ):
        super().__init__(name, part, files, "Download the file again.")
        self.places, self._array_record = places, array_record
        opened = _open_array_record if array_record else functools.partial(open, mode="rb")
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_FILES)(opened)

    def load(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], from the files."""
        read = self._read_array_records if self._array_record else self._read_tfrecords
        records = tf.numpy_function(read, [ids], tf.string, stateful=False)
        return self.decode(tf.ensure_shape(records, ids.shape))

    def _read_tfrecords(self, ids: np.ndarray) -> np.ndarray:
        records = np.empty(len(ids), object)
        for row, (file, start, length) in enumerate(np.asarray(self.places[ids])):
            opened = self._open(self.files[file])  # Keeps the file open if another thread evicts it from the cache.
            records[row] = os.pread(opened.fileno(), int(length), int(start))
        return records

    def _read_array_records(self, ids: np.ndarray) -> np.ndarray:
        records, places = np.empty(len(ids), object), self.places[ids]
        for file in np.unique(places[:, 0]):
            rows = np.flatnonzero(places[:, 0] == file)
            found = self._open(self.files[file]).read(places[rows, 1].tolist())
            for row, record in zip(rows, found, strict=True):
                records[row] = record
        return records

    def place(self, example: int) -> str:
        """Returns where a record is, for messages."""
        file, start, _ = self.places[example]
        where = f"record {start}" if self._array_record else f"the record at byte {start - _HEADER}"
        return f"{self.name}: {where} of {self.files[file]!r}"


def _open_array_record(path: str):
    from array_record.python.array_record_module import ArrayRecordReader

    # No read-ahead: access is random.
    return ArrayRecordReader(path, options="readahead_buffer_size:0", file_reader_buffer_size=32768)


def sizes(files: Iterable[str]) -> list[tuple[str, int]]:
    """Returns the name and the size of each file, for fingerprints."""
    return [(os.path.basename(file), os.path.getsize(file)) for file in files]


def open_index(files: Sequence[str], title: str) -> np.ndarray:
    """Returns (file, first byte, length) of every record of TFRecord files, int64 [records, 3].

    It is stored in the user's cache, and read from there as long as paths, sizes and times of the files are the same.
    """
    found = [(os.path.abspath(file), os.stat(file)) for file in files]
    key = file_source.digest(json.dumps([(path, one.st_size, one.st_mtime_ns) for path, one in found]))
    stored = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tfdist", f"records-{key}.npy")
    with contextlib.suppress(OSError, ValueError, EOFError):  # Not there, or cut off when the host crashed.
        return np.load(stored, mmap_mode="r")
    with ThreadPoolExecutor(_THREADS) as pool:
        index = np.concatenate([*pool.map(functools.partial(_locate, title), range(len(files)), files)])
    content = io.BytesIO()
    np.save(content, index)
    with contextlib.suppress(OSError):  # Not writable.
        stored.parent.mkdir(parents=True, exist_ok=True)
        files_lib.replace_file(stored, content.getbuffer())
    return index


def _locate(title: str, number: int, path: str) -> np.ndarray:
    places, position, size = [], 0, os.path.getsize(path)
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
