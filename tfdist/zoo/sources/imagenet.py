"""ImageNet as TFRecord files in the usual layout: train-00000-of-01024, validation-00000-of-00128."""

import glob
import os
import re

import tensorflow as tf

from tfdist.config import paths
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, file_source, record_files

_SHARD = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


class imagenet(record_files.RecordSource):
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

    A source of {"image": string [n], encoded, "label": int64 [n], from 0}, for `tfdist.zoo.inception:image`.

    Raises:
        FileNotFoundError: there are no such files, or files of a split are missing.
        ValueError: the split does not exist, has files of two sets, or a file is damaged.
    """

    def __init__(self, split: str, *, path: str, num_classes: int = 1000, first_label: int = 1):
        path = str(paths.local(path, "path"))
        self.num_classes, self._first_label = num_classes, first_label
        title = f"imagenet {path!r}"
        shards = _find_shards(path, title)
        name = splits.split_name(split, shards, source=title)
        index = record_files.open_index(name, shards[name], title)
        part = splits.resolve(split, {name: len(index)}, source=title)
        super().__init__(title, part, shards[name], index[part.start : part.stop])

    def decode(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the encoded images and the labels of records, strings [n]."""
        parsed = tf.io.parse_example(records, _FEATURES)
        return {"image": parsed["image/encoded"], "label": parsed["image/class/label"] - self._first_label}

    def check(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the sizes of the decoded images; an error of TensorFlow for a label out of range, too."""
        found, first = self.load(ids), self._first_label
        text = f"labels must be {first} to {first + self.num_classes - 1}"
        tf.debugging.assert_non_negative(found["label"], text)
        tf.debugging.assert_less(found["label"], tf.constant(self.num_classes, tf.int64), text)
        return decoding.sizes(lambda image: decoding.decode_image(image, 3), found["image"])

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the range of the examples."""
        return file_source.digest(repr((record_files.sizes(self.files), self.part.start, self.part.stop)))


def _find_shards(path: str, title: str) -> dict[str, list[str]]:
    """Returns split -> its files in order."""
    found: dict[str, dict[tuple[int, int], str]] = {}
    pattern = os.path.join(glob.escape(path), "")
    # Folders that cannot be read, such as lost+found, are passed over.
    for file in sorted([*glob.glob(f"{pattern}*-of-*"), *glob.glob(f"{pattern}*/*-of-*")]):
        if match := _SHARD.fullmatch(os.path.basename(file)):
            files, key = found.setdefault(match["split"], {}), (int(match["count"]), int(match["number"]))
            other = files.get(key) or next((one for (count, _), one in files.items() if count != key[0]), None)
            if other:
                raise ValueError(f"{title} has two sets of files: {other!r} and {file!r}. Move one of them elsewhere.")
            files[key] = file
    if not found:
        raise FileNotFoundError(
            f"{title}: there are no TFRecord files. Expected: {os.path.abspath(path)}/train-00000-of-01024, "
            "or the same in the folders train/ and validation/, which you may read."
        )
    for split, files in found.items():
        count = next(iter(files))[0]
        if missing := [number for number in range(count) if (count, number) not in files]:
            raise FileNotFoundError(
                f"{title}: {len(missing)} of the {count} files of {split!r} are missing; the first is "
                f"{split}-{missing[0]:05d}-of-{count:05d}."
            )
    return {split: [files[key] for key in sorted(files)] for split, files in found.items()}
