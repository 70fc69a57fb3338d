"""TFRecord files of tf.train.Example, whose features a config describes."""

import glob
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, record_files

_DECODINGS = (None, "image", "raw")
_OPTIONS = {"key", "dtype", "shape", "decode", "size", "channels"}


class tfrecord(record_files.IndexedRecords):
    """TFRecord files of tf.train.Example, by a description of their features.

    An index of the places of the records gives random access; it is built once and stored beside the files, or in
    ~/.cache/tfdist if their folder is not writable. The records must not be compressed. Training does not compare
    their checksums: `verify` does.

    Args:
        split: for a `path` with "{split}" the word in its place, otherwise "train", "test" or "all"; with or without
            a slice.
        path: the files, with wildcards: "data/{split}-*.tfrecord"; variables are expanded. Without "{split}" the
            records are assigned to "train" and "test" at random, always in the same way.
        features: {feature of the batch: what it is in a record}, for example {"image": {"key": "image/encoded",
            "decode": "image", "size": [64, 64]}, "label": {"dtype": "int64"}}.
            "key": its name in the record; the feature's own by default.
            "dtype": "float32", "int64" or "string"; with "raw" any number type, such as "uint8".
            "shape": the shape of an example; [] by default.
            "decode": "image", a JPEG, PNG, BMP or GIF, scaled to "size", [height, width], with "channels", 3 by
            default; "raw", the bytes of an array; None by default.
        test_fraction: the part of the records in "test".
        num_classes: the number of classes; None: not known.
        classes: the name of each class; None: not known.

    A source of {feature: [n, ...]}.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: a feature is described wrongly, the split is empty, or a file is damaged.
    """

    def __init__(
        self,
        split: str,
        *,
        path: str,
        features: Mapping[str, Mapping[str, Any]],
        test_fraction: float = 0.2,
        num_classes: int | None = None,
        classes: Sequence[str] | None = None,
    ):
        path = str(paths.local(path, "path"))
        name = f"tfrecord {path!r}"
        described = {feature: _check_feature(feature, spec, name) for feature, spec in features.items()}
        plain = split.partition("[")[0]
        pattern = path.replace("{split}", plain)
        files = sorted(glob.glob(pattern))
        if not files:
            raise FileNotFoundError(f"{name}: there are no files {os.path.abspath(pattern)!r}.")
        key = hashlib.sha256(pattern.encode()).hexdigest()[:8]
        index = record_files.open_index(os.path.dirname(files[0]), f"{plain}-{key}", files, name)
        if pattern == path:
            rows, part = splits.by_ratio(split, len(index), test_fraction=test_fraction, source=name)
            index = index[rows]
        else:
            part = splits.resolve(split, {plain: len(index)}, source=name)
        super().__init__(files, index[part.start : part.stop], part, name)
        self._features = described
        self._parsed = {
            spec["key"]: tf.io.FixedLenFeature([] if spec["decode"] else spec["shape"], spec["stored"])
            for spec in described.values()
        }
        self.classes, self.num_classes = classes, num_classes or (classes and len(classes))

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {feature: [n, ...]}."""
        parsed = tf.io.parse_example(self.records(ids), self._parsed)
        return {name: _decode(parsed[spec["key"]], spec) for name, spec in self._features.items()}

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the places of the examples."""
        sizes = [(os.path.basename(file), os.path.getsize(file)) for file in self._files]
        places = np.ascontiguousarray(self._index).tobytes()
        return hashlib.sha256(repr(sizes).encode() + places).hexdigest()[:16]


def _check_feature(feature: str, spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    unknown = sorted(set(spec) - _OPTIONS)
    if unknown or spec.get("decode") not in _DECODINGS:
        raise ValueError(
            f"{name}: features[{feature!r}] may have {', '.join(sorted(_OPTIONS))}, with decode 'image', 'raw' or "
            f"None. Received: {dict(spec)!r}"
        )
    decode = spec.get("decode")
    try:
        dtype = tf.as_dtype(spec.get("dtype", "uint8" if decode else "float32"))
    except TypeError:
        raise ValueError(f"{name}: features[{feature!r}] has an unknown dtype. Received: {spec['dtype']!r}") from None
    if decode == "image" and np.shape(spec.get("size")) != (2,):
        raise ValueError(f'{name}: features[{feature!r}] needs "size", [height, width]. Received: {dict(spec)!r}')
    stored = tf.string if decode else dtype
    if stored not in (tf.string, tf.int64, tf.float32):
        raise ValueError(
            f'{name}: features[{feature!r}] must have the dtype "float32", "int64" or "string", or "decode": "raw". '
            f"Received: {dict(spec)!r}"
        )
    return {
        "key": spec.get("key", feature),
        "dtype": dtype,
        "stored": stored,
        # `tf.io.decode_raw` lacks these types; a cast keeps the bits.
        "raw": {tf.uint32: tf.int32, tf.uint64: tf.int64}.get(dtype, dtype),
        "shape": list(spec.get("shape", [])),
        "decode": decode,
        "size": spec.get("size"),
        "channels": spec.get("channels", 3),
    }


def _decode(values: tf.Tensor, spec: Mapping[str, Any]) -> tf.Tensor:
    if spec["decode"] == "raw":
        rows = -1 if values.shape[0] is None else values.shape[0]
        return tf.reshape(tf.cast(tf.io.decode_raw(values, spec["raw"]), spec["dtype"]), [rows, *spec["shape"]])
    if spec["decode"] != "image":
        return values
    shape = [*spec["size"], spec["channels"]]

    def decode(encoded: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=spec["channels"], expand_animations=False)
        image = tf.ensure_shape(image, [None, None, spec["channels"]])
        return tf.ensure_shape(decoding.scale(image, spec["size"]), shape)

    return decoding.decode_each(decode, values, tf.TensorSpec(shape, tf.uint8))
