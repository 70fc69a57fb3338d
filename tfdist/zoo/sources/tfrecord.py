"""TFRecord files of tf.train.Example, whose features a config describes."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.zoo import decoding, splits
from tfdist.zoo.sources.files import file_source, record_files

_OPTIONS = {"key", "dtype", "shape", "decode", "size", "channels"}
# The name of one of several files: its number, and how many there are.
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\b.*")


class tfrecord(record_files.RecordSource):
    """TFRecord files of tf.train.Example, whose features you describe.

    An index of the places of the records gives random access; it is built once and stored in ~/.cache/tfdist. The
    records must not be compressed, and their checksums are not verified. If files are named like train-00000-of-01024,
    none may be missing.

    Args:
        split: replaces "{split}" in `path`; if `path` has none, "train", "test" or "all". It may have a slice.
        path: the files, with wildcards: "data/{split}-*.tfrecord"; variables are expanded. Without "{split}" the
            records are assigned to "train" and "test" at random, always in the same way.
        features: {feature of the batch: what it is in a record}, for example {"image": {"key": "image/encoded",
            "decode": "image", "size": [64, 64]}, "label": {"dtype": "int64"}}.
            "key": its name in the record; the feature's own by default.
            "dtype": "float32", "int64" or "string", which `config.data.prepare` can decode.
            "shape": the shape of an example; [] by default.
            "decode": None, the default; or "image" for a JPEG, PNG, BMP or GIF, which is scaled to "size",
            [height, width], and has "channels", 3 by default.
        test_fraction: the part of the records in "test".
        num_classes: the number of classes; None: not known.
        classes: the name of each class; None: not known.

    A source of {feature: [n, ...]}.

    Raises:
        FileNotFoundError: there are no such files, or one of a set is missing.
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
        _check_complete(files, name)
        index = record_files.open_index(files, name)
        if pattern == path:
            rows, part = splits.by_ratio(split, len(index), test_fraction=test_fraction, source=name)
            index = index[rows]
        else:
            part = splits.resolve(split, {plain: len(index)}, source=name)
        super().__init__(name, part, files, index[part.start : part.stop])
        self._features = described
        self._parsed = {
            spec["key"]: tf.io.FixedLenFeature([] if spec["decode"] else spec["shape"], spec["stored"])
            for spec in described.values()
        }
        self.classes, self.num_classes = classes, num_classes or (classes and len(classes))

    def decode(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features of records, strings [n]."""
        parsed = tf.io.parse_example(records, self._parsed)
        return {name: _decode(parsed[spec["key"]], spec) for name, spec in self._features.items()}

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the places of the examples."""
        places = np.ascontiguousarray(self.places).tobytes()
        return file_source.digest(repr(record_files.sizes(self.files)), places)


def _check_complete(files: Sequence[str], name: str) -> None:
    """Checks files NAME-00000-of-00002: ValueError if they belong to two sets, FileNotFoundError if one is missing."""
    shards = [match.groups() for file in files if (match := _SHARD.fullmatch(os.path.basename(file)))]
    for count in {count for _, count in shards}:
        if len(shards) > int(count) or shards[0][1] != count:
            raise ValueError(f"{name} has files of two sets, one of them of {count} files. Move one set elsewhere.")
        missing = sorted({f"{number:05d}" for number in range(int(count))} - {number for number, _ in shards})
        if missing:
            raise FileNotFoundError(f"{name}: {len(missing)} of {count} files are missing, the first {missing[0]}.")


def _check_feature(feature: str, spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    decode, where = spec.get("decode"), f"{name}: features[{feature!r}]={dict(spec)!r}"
    if set(spec) - _OPTIONS or decode not in (None, "image"):
        raise ValueError(
            f"{where} may have {', '.join(sorted(_OPTIONS))}, with decode 'image' or None. For other bytes set dtype "
            "to 'string', and decode them in config.data.prepare, for example by tf.io.decode_raw."
        )
    if decode == "image" and np.shape(spec.get("size")) != (2,):
        raise ValueError(f'{where} needs "size", [height, width].')
    stored = "string" if decode else spec.get("dtype", "float32")
    if stored not in ("string", "int64", "float32"):
        raise ValueError(f'{where} must have the dtype "float32", "int64" or "string".')
    return {"key": feature, "shape": [], "channels": 3, "decode": None, **spec, "stored": tf.as_dtype(stored)}


def _decode(values: tf.Tensor, spec: Mapping[str, Any]) -> tf.Tensor:
    if spec["decode"] is None:
        return values

    def decode(encoded: tf.Tensor) -> tf.Tensor:
        return decoding.scale(decoding.decode_image(encoded, spec["channels"]), spec["size"])

    return decoding.decode_each(decode, values, tf.TensorSpec([*spec["size"], spec["channels"]], tf.uint8))
