"""ImageNet as TFRecord files in the usual layout: train-00000-of-01024, validation-00000-of-00128."""

import contextlib
import functools
import hashlib
import json
import os
import re
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from tfdist.zoo import splits
from tfdist.zoo.sources import from_disk

_SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
# Maximum number of open files, and of files indexed in parallel. A process may usually open 1,024 files.
_MAX_OPEN_FILES, _THREADS = 256, 16
# Bytes before a record's content (its length and a checksum of it) and after it (a checksum of the content).
_HEADER, _FOOTER = 12, 4
_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


class ImageNet:
    """See `imagenet`."""

    def __init__(self, split: str, path: str, num_classes: int, first_label: int):
        self.num_classes, self._first_label = num_classes, first_label
        self._title = f"imagenet {path!r}"
        shards = _find_shards(path, self._title)
        name = splits.split_name(split, shards, source=self._title)
        self._files = shards[name]
        index = _open_index(os.path.dirname(self._files[0]), name, self._files, self._title)
        self._part = splits.resolve(split, {name: len(index)}, source=self._title)
        self._index = index[self._part.start : self._part.stop]
        self._open = functools.lru_cache(maxsize=_MAX_OPEN_FILES)(_open_file)

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": string [n], encoded, "label": int64 [n]}."""
        records = tf.ensure_shape(tf.numpy_function(self._read, [ids], tf.string, stateful=False), ids.shape)
        parsed = tf.io.parse_example(records, _FEATURES)
        return {"image": parsed["image/encoded"], "label": parsed["image/class/label"] - self._first_label}

    def verify(self) -> None:
        """Decodes every image.

        Raises:
            ValueError: names file and position of the first unreadable record, or of a label out of range.
        """
        with tf.device("CPU:0"):
            for example in range(len(self)):
                try:
                    found = self.read(tf.constant([example], tf.int64))
                    tf.io.decode_image(found["image"][0], channels=3, expand_animations=False)
                except (tf.errors.OpError, OSError) as error:
                    raise ValueError(
                        f"{self._title}: {self._place(example)} cannot be read: {from_disk.reason(error)}"
                    ) from None
                label, first = int(found["label"][0]), self._first_label
                if not 0 <= label < self.num_classes:
                    raise ValueError(
                        f"{self._title}: {self._place(example)} has the label {label + first}, but labels must be "
                        f"{first} to {first + self.num_classes - 1}."
                    )

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the range of the examples."""
        sizes = [(os.path.basename(file), os.path.getsize(file)) for file in self._files]
        return hashlib.sha256(repr((sizes, self._part.start, self._part.stop)).encode()).hexdigest()[:16]

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files."""
        return from_disk.fingerprint(len(self._files), self._files.__getitem__)

    def _place(self, example: int) -> str:
        file, start, _ = self._index[example]
        return f"the record at byte {start - _HEADER} of {self._files[file]!r}"

    def _read(self, ids: np.ndarray) -> np.ndarray:
        records = np.empty(len(ids), object)
        for place, (file, start, length) in enumerate(np.asarray(self._index[ids])):
            opened = self._open(self._files[file])  # Keeps the file open if another thread evicts it from the cache.
            records[place] = os.pread(opened.fileno(), int(length), int(start))
        return records


def imagenet(split: str, *, path: str, num_classes: int = 1000, first_label: int = 1) -> ImageNet:
    """ImageNet's TFRecord files, as written by the scripts of TensorFlow's models; or other images in that layout.

    Files are PATH/train-00000-of-01024 or PATH/train/train-00000-of-01024, and the same for "validation". A record is a
    tf.train.Example with "image/encoded", a JPEG or PNG of any size, and "image/class/label". An index of the record
    offsets gives random access (24 bytes per example). It is built once and stored beside the files, or in
    $XDG_CACHE_HOME/tfdist (default: ~/.cache/tfdist) if their folder is not writable.

    Args:
        split: "train" or "validation", with or without a slice: "train[:90%]".
        path: the folder of the files, or of the folders "train" and "validation"; variables are expanded.
        num_classes: 1000 for ImageNet.
        first_label: the label of the first class in the files; 1 if 0 is the background class.

    Returns:
        A source of {"image": string [n], encoded, "label": int64 [n], from 0}, for `tfdist.zoo.inception:image`.

    Raises:
        FileNotFoundError: there are no such files, or files of a split are missing.
        ValueError: the split does not exist, or a file is damaged.
    """
    return ImageNet(split, os.path.expanduser(os.path.expandvars(path)), num_classes, first_label)


def _open_file(path: str) -> BinaryIO:
    return open(path, "rb")


def _find_shards(path: str, title: str) -> dict[str, list[str]]:
    """Returns split -> its files in order."""
    folders = [path, *(entry.path for entry in os.scandir(path) if entry.is_dir())] if os.path.isdir(path) else []
    found: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            match = _SHARD.fullmatch(name)
            if match:
                found.setdefault(match["split"], {})[int(match["number"])] = os.path.join(folder, name)
                counts[match["split"]] = int(match["count"])
    if not found:
        raise FileNotFoundError(
            f"{title}: there are no TFRecord files. Expected: {os.path.abspath(path)}/train-00000-of-01024, "
            "or the same in the folders train/ and validation/."
        )
    for split, files in found.items():
        missing = sorted(set(range(counts[split])) - set(files))
        if missing:
            raise FileNotFoundError(
                f"{title}: {len(missing)} of the {counts[split]} files of {split!r} are missing; the first is "
                f"{split}-{missing[0]:05d}-of-{counts[split]:05d}."
            )
    return {split: [files[number] for number in sorted(files)] for split, files in found.items()}


def _open_index(folder: str, split: str, files: list[str], title: str) -> np.ndarray:
    """Returns (file, first byte, length) of every record, int64 [records, 3]; reads a stored index if up to date."""
    sizes = [os.path.getsize(file) for file in files]
    beside = os.path.join(folder, f".tfdist-{split}-{sum(sizes)}-{len(files)}.npy")
    key = hashlib.sha256(json.dumps([list(map(os.path.abspath, files)), sizes]).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    paths = [beside, os.path.join(cache, "tfdist", f"imagenet-{split}-{key[:16]}.npy")]
    for path in paths:
        if os.path.exists(path):
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


def _store(path: str, index: np.ndarray) -> None:
    """Writes the index completely or not at all; several workers may write it at the same time."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), suffix=".npy", delete=False) as file:
        try:
            np.save(file, index)
            file.flush()
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
                    f"{title}: {path!r} is cut off or not a TFRecord file, at byte {position}. Download it again."
                )
            places.append((number, position + _HEADER, length))
            position += _HEADER + length + _FOOTER
    return np.asarray(places, np.int64).reshape(-1, 3)
