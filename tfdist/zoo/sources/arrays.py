"""Arrays in memory, .npz files, and the digits included in the package."""

import hashlib
import os
import pathlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.data.cache import InMemoryArrays
from tfdist.zoo import splits as splits_lib
from tfdist.zoo.splits import Slice

DIGITS_PATH = pathlib.Path(__file__).parents[1] / "data" / "digits.npz"
# Keras' names for image and label: `x_train`, `y_train`.
_KERAS_NAMES = {"x": "image", "y": "label"}
# Arrays up to this size are hashed whole, in about 0.1 s; of larger ones at least this many rows, evenly spaced.
_WHOLE_BYTES, _FINGERPRINT_ROWS = 2**26, 256


class Arrays:
    """Examples [start, stop) of arrays of equal length; see `arrays`."""

    def __init__(
        self,
        features: Mapping[str, np.ndarray],
        part: Slice,
        num_classes: int | None,
        name: str,
        classes: Sequence[str] | None = None,
        columns: Mapping[str, Any] | None = None,
    ):
        self.num_classes, self.classes, self.columns = num_classes, classes, columns
        self._part = part
        self._name = name
        features = {key: values[part.start : part.stop] for key, values in features.items()}
        self._sizes = ", ".join(f"{key} {values.dtype} {values.shape[1:]}" for key, values in features.items())
        self._fingerprint = _fingerprint(features)
        self._memory = InMemoryArrays(
            lambda rows: {
                key: np.ascontiguousarray(values[rows.start : rows.stop : rows.step])
                for key, values in features.items()
            },
            range(len(self)),
        )

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def __repr__(self) -> str:
        part = self._part
        return f"{self._name} {part.name}[{part.start}:{part.stop}]: {len(self)} examples in memory, {self._sizes}"

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {feature: [n, ...]}."""
        return self._memory.gather(ids)

    def arrays_of_part(self, examples: range) -> InMemoryArrays:
        """Moves these examples to arrays of their own; `read` cannot be used then."""
        return self._memory.part(examples)

    def fingerprint(self) -> str:
        """Returns a hash of names, shapes, dtypes, and contents; of large arrays, of evenly spaced rows."""
        return self._fingerprint


def arrays(
    split: str,
    *,
    splits: Mapping[str, Mapping[str, np.ndarray]],
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Arrays:
    """Examples from arrays in memory.

    Args:
        splits: {split: {feature: array [examples, ...]}}, for example {"train": {"image": x, "label": y}}. The feature
            "label" must be class numbers: integers [examples] or [examples, 1], from 0. The arrays are not copied: do
            not modify them.
        num_classes: the number of classes; None: the largest label of all splits + 1.
        classes: the name of each class, for data.json in the workdir; None: not known.

    Returns a source of {feature: [n, ...]}, labels as int64 [n]. Raises ValueError, which names the split and the first
    invalid example, if lengths differ, or labels are not integers or out of range.
    """
    checked = {key: _check_features(features, f"{name}, split {key!r}") for key, features in splits.items()}
    part = splits_lib.resolve(split, {key: _length(features) for key, features in checked.items()}, source=name)
    return Arrays(checked[part.name], part, _count_classes(checked, num_classes, name), name, classes)


def divide(
    split: str,
    features: Mapping[str, np.ndarray],
    *,
    test_fraction: float,
    name: str,
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
) -> Arrays:
    """Examples of arrays without splits, which `splits.by_ratio` divides; the other arguments are those of `arrays`."""
    features = _check_features(features, name)
    rows, part = splits_lib.by_ratio(split, _length(features), test_fraction=test_fraction, source=name)
    num_classes = _count_classes({"all": features}, num_classes, name)
    return Arrays({key: values[rows] for key, values in features.items()}, part, num_classes, name, classes, columns)


def npz(
    split: str,
    *,
    path: str,
    num_classes: int | None = None,
    keys: Mapping[str, str] | None = None,
    test_fraction: float = 0.2,
) -> Arrays:
    """Examples from one .npz file.

    Arrays are named FEATURE_SPLIT: `image_train`, `label_train`, `image_test`, `label_test`, and any other feature.
    Keras' names (mnist.npz) `x_train`, `y_train` are read as `image_train`, `label_train`. With `keys`, arrays of other
    names are divided into "train" and "test" by `test_fraction`, at random and always in the same way.

    Images without a channel axis, [examples, h, w], get one. Pickled objects are rejected. The labels of all splits and
    the features of the chosen split are read into memory.

    Args:
        path: the file, such as ~/.keras/datasets/mnist.npz or $DSDIR/mnist.npz: variables are expanded.
        num_classes: the number of classes; None: the largest label of all splits + 1.
        keys: {feature: name of its array}, such as {"image": "photos", "label": "species"}, of a file without splits.
        test_fraction: the part of the examples in "test", of a file without splits.

    Returns:
        A source of {feature: [n, ...]}, labels as int64 [n].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, its arrays have other names, or it contains pickled objects; or as `arrays`.
    """
    path = str(paths.local(path, "path"))
    name = f"npz {path!r}"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: there is no file {os.path.abspath(path)!r}.")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("not a zip archive")
        with np.load(path, allow_pickle=False) as file:  # Unpickling can run code.
            if keys:
                features = {feature: _read(file, array, feature, name) for feature, array in keys.items()}
                return divide(split, features, name=name, test_fraction=test_fraction, num_classes=num_classes)
            part, named = split.partition("[")[0], _by_split(file.files)
            if part not in named:
                raise ValueError(
                    f"{name} has no arrays of the split {part!r}, such as image_{part} and label_{part}. It has: "
                    f"{', '.join(file.files) or 'none'}. Rename them, or name those of a file without splits in the "
                    'source: keys={"image": ARRAY, "label": ARRAY}.'
                )
            splits = {
                one: {
                    feature: _read(file, array, feature, name)
                    for feature, array in features.items()
                    if one == part or feature == "label"
                }
                for one, features in named.items()
                if one == part or ("label" in features and features.keys() >= named[part].keys())
            }
            return arrays(split, splits=splits, num_classes=num_classes, name=name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{name} is damaged or not an .npz file: {error}. Write it again with np.savez.") from None


def digits(split: str) -> Arrays:
    """The 1,797 handwritten digits of 8x8 pixels included in the package.

    The test set of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository, 1998, CC BY 4.0. The splits are defined here: every fifth image of each class, in the order of the
    data, is in "test" (355 images), the others are in "train" (1,442), so that both contain all 13 writers; "all"
    contains all images. See `tfdist/zoo/data/README.md`.

    Args:
        split: "train", "test" or "all", with or without a slice.

    Returns:
        A source of {"image": uint8 [n, 8, 8, 1], values 0 to 16, "label": int64 [n]}; `prepare` it with scale=1/16.
    """
    with np.load(DIGITS_PATH, allow_pickle=False) as file:
        images, labels = file["image"], file["label"]
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[4::5]] = True
    parts = {"train": ~test, "test": test, "all": np.ones_like(test)}
    features = {key: {"image": images[part], "label": labels[part]} for key, part in parts.items()}
    return arrays(split, splits=features, num_classes=10, classes="0123456789", name="digits")


def _by_split(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns split -> feature -> the name of its array, FEATURE_SPLIT."""
    found: dict[str, dict[str, str]] = {}
    for array in names:
        feature, _, part = array.rpartition("_")
        if feature and part:
            found.setdefault(part, {})[_KERAS_NAMES.get(feature, feature)] = array
    return found


def _read(file: np.lib.npyio.NpzFile, array: str, feature: str, name: str) -> np.ndarray:
    if array not in file.files:
        raise ValueError(f"{name} has no array {array!r}. It has: {', '.join(file.files) or 'none'}.")
    try:
        values = file[array]
    except ValueError as error:
        raise ValueError(f"{name}: the array {array!r} cannot be read: {error}") from None
    return values[..., np.newaxis] if feature == "image" and values.ndim == 3 else values


def _fingerprint(features: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(features.items()):
        rows = values if values.nbytes <= _WHOLE_BYTES else values[:: max(1, len(values) // _FINGERPRINT_ROWS)]
        digest.update(f"{name} {values.dtype} {values.shape} ".encode() + np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()[:16]


def _length(features: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(features.values())))


def _check_features(features: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    if not features:
        raise ValueError(f"{where} has no arrays.")
    checked = {}
    for key, given in features.items():
        values = np.asarray(given)
        if np.ma.is_masked(given) or values.ndim == 0 or values.dtype.kind not in "biufcSU":  # No dates, no objects.
            raise ValueError(
                f"{where}: {key!r} must be an array of numbers or bytes with shape [examples, ...], without masked "
                f"values. Received: {values.dtype} {list(values.shape)}"
            )
        checked[key] = _check_label(values, where) if key == "label" else values
    if len({len(values) for values in checked.values()}) > 1:
        listed = ", ".join(f"{key} {len(values)}" for key, values in checked.items())
        raise ValueError(f"{where}: its arrays must have equal lengths. Received: {listed}.")
    return checked


def _check_label(label: np.ndarray, where: str) -> np.ndarray:
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim != 1 or label.dtype.kind not in "biu":
        raise ValueError(
            f"{where}: labels must be integers [examples]. Received: {label.dtype} {list(label.shape)}. "
            "Use another name for other targets, such as `targets` or `targets_train`."
        )
    return label.astype(np.int64)


def _count_classes(splits: Mapping[str, Mapping[str, np.ndarray]], num_classes: int | None, name: str) -> int | None:
    """Returns `num_classes`, or the largest label + 1; raises ValueError for a label that is out of range."""
    labels = {part: features["label"] for part, features in splits.items() if len(features.get("label", ()))}
    if num_classes is None and labels:
        num_classes = int(max(label.max() for label in labels.values())) + 1
    for part, label in labels.items():
        bad = np.flatnonzero((label < 0) | (label >= num_classes))
        if len(bad):
            raise ValueError(
                f"{name}, split {part!r}: labels must be within 0..{num_classes - 1} ({num_classes} classes). "
                f"Received: {label[bad[0]]} for example {bad[0]}, and {len(bad) - 1} more."
            )
    return num_classes
