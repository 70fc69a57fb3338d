"""ImageNet as TFRecord files in the usual layout: train-00000-of-01024, validation-00000-of-00128."""

import glob

import tensorflow as tf

from tfdist.config import paths
from tfdist.zoo import decoding
from tfdist.zoo.sources.tfrecord import tfrecord

_FEATURES = {
    "image": {"key": "image/encoded", "dtype": "string"},
    "label": {"key": "image/class/label", "dtype": "int64"},
}


class imagenet(tfrecord):
    """ImageNet's TFRecord files, as written by the scripts of TensorFlow's models; or other images in that layout.

    Files are PATH/train-00000-of-01024 or PATH/train/train-00000-of-01024, and the same for "validation". A record is a
    tf.train.Example with "image/encoded", a JPEG or PNG of any size, and "image/class/label".

    Args:
        split: "train" or "validation", with or without a slice: "train[:90%]".
        path: the folder of the files, or of the folders "train" and "validation"; variables are expanded.
        num_classes: 1000 for ImageNet.
        first_label: the label of the first class in the files; 1 if 0 is the background class.

    A source of {"image": string [n], encoded, "label": int64 [n], from 0}, for `tfdist.zoo.inception:image`. Raises as
    `tfrecord`.
    """

    def __init__(self, split: str, *, path: str, num_classes: int = 1000, first_label: int = 1):
        folder = paths.local(path, "path")
        of_splits = "{split}/" if (folder / split.partition("[")[0]).is_dir() else ""
        pattern = f"{glob.escape(str(folder))}/{of_splits}{{split}}-*-of-*"
        super().__init__(split, path=pattern, features=_FEATURES, num_classes=num_classes)
        self._first_label = first_label

    def decode(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the encoded images and the labels of records, strings [n]."""
        batch = super().decode(records)
        return batch | {"label": batch["label"] - self._first_label}

    def check(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the sizes of the decoded images; a label out of range also raises an error of TensorFlow."""
        found, first = self.load(ids), self._first_label
        text = f"labels must be {first} to {first + self.num_classes - 1}"
        tf.debugging.assert_non_negative(found["label"], text)
        tf.debugging.assert_less(found["label"], tf.constant(self.num_classes, tf.int64), text)
        return decoding.num_values(found["image"])
