"""ImageNet as TFRecord files in the usual layout: train-00000-of-01024, validation-00000-of-00128."""

import glob
import hashlib
import os
import re

import tensorflow as tf

from tfdist.zoo import splits
from tfdist.zoo.sources.files import from_disk, record_files

_SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
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
        index = record_files.open_index(os.path.dirname(self._files[0]), name, self._files, self._title)
        self._part = splits.resolve(split, {name: len(index)}, source=self._title)
        self._index = index[self._part.start : self._part.stop]
        self._records = record_files.IndexedRecords(self._files, self._index)

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def __repr__(self) -> str:
        return f"{self._title} {self._part.name}: {len(self)} records of {len(self._files)} files"

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": string [n], encoded, "label": int64 [n]}."""
        records = tf.ensure_shape(tf.numpy_function(self._records.read, [ids], tf.string, stateful=False), ids.shape)
        parsed = tf.io.parse_example(records, _FEATURES)
        return {"image": parsed["image/encoded"], "label": parsed["image/class/label"] - self._first_label}

    def verify(self) -> None:
        """Compares the checksums of all records in the files, and decodes every image.

        Raises:
            ValueError: names file and position of the first unreadable record, or of a label out of range.
        """
        self._records.verify(self._title)
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
        return f"the record at byte {start - record_files.HEADER} of {self._files[file]!r}"


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
        ValueError: the split does not exist, has files of two sets, or a file is damaged.
    """
    return ImageNet(split, os.path.expanduser(os.path.expandvars(path)), num_classes, first_label)


def _find_shards(path: str, title: str) -> dict[str, list[str]]:
    """Returns split -> its files in order."""
    found: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    pattern = os.path.join(glob.escape(path), "")
    # Folders that cannot be read, such as lost+found, are passed over.
    for file in sorted([*glob.glob(f"{pattern}*-of-*"), *glob.glob(f"{pattern}*/*-of-*")]):
        if match := _SHARD.fullmatch(os.path.basename(file)):
            files, count = found.setdefault(match["split"], {}), int(match["count"])
            other = files.get(int(match["number"])) or next(iter(files.values()), file)
            if int(match["number"]) in files or counts.setdefault(match["split"], count) != count:
                raise ValueError(f"{title} has two sets of files: {other!r} and {file!r}. Move one of them elsewhere.")
            files[int(match["number"])] = file
    if not found:
        raise FileNotFoundError(
            f"{title}: there are no TFRecord files. Expected: {os.path.abspath(path)}/train-00000-of-01024, "
            "or the same in the folders train/ and validation/, which you may read."
        )
    for split, files in found.items():
        missing = sorted(set(range(counts[split])) - set(files))
        if missing:
            raise FileNotFoundError(
                f"{title}: {len(missing)} of the {counts[split]} files of {split!r} are missing; the first is "
                f"{split}-{missing[0]:05d}-of-{counts[split]:05d}."
            )
    return {split: [files[number] for number in sorted(files)] for split, files in found.items()}
