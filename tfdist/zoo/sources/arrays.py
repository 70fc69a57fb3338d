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
# Ends of names that mean a split, and names of arrays without one.
_SPLITS = ("train", "test", "val", "valid", "validation", "evaluation", "all")
_INPUTS = ("x", "data", "image", "images", "input", "inputs", "features")
_LABELS = ("y", "label", "labels", "target", "targets", "classes")
# Arrays up to this size are hashed whole, in about 0.1 s; otherwise at least so many rows, evenly spaced.
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
        self._memory = InMemoryArrays(lambda: features)

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

    def verify(self) -> None:
        """Does nothing: the arrays were checked by the constructor."""

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
    labels = {key: features["label"] for key, features in checked.items() if "label" in features}
    return _slice(split, checked, _count_classes(labels, num_classes, name), name, classes)


def npz(
    split: str,
    *,
    path: str,
    num_classes: int | None = None,
    keys: Mapping[str, str] | None = None,
    test_fraction: float = 0.2,
) -> Arrays:
    """Examples from one .npz file.

    Arrays of any other names, such as `x` and `y`, are divided into "train" and "test" by `test_fraction`, at random
    and always in the same way. Without `keys`, `x`, `images` and the like are "image" if they have 3 or 4 dimensions,
    else "inputs"; `y`, `labels` and the like are "label" if they are integers, texts or booleans, else
    "targets".

    Arrays are named FEATURE_SPLIT: `image_train`, `label_train`, `image_test`, `label_test`, and any other feature.
    Keras' names (mnist.npz) `x_train`, `y_train` are read as `image_train`, `label_train`. Images without a channel
    axis, [examples, h, w], get one. Pickled objects are rejected. The labels of all splits and the features of the
    chosen split are read into memory.

    Args:
        path: the file, such as ~/.keras/datasets/mnist.npz or $DSDIR/mnist.npz: variables are expanded.
        num_classes: the number of classes; None: the largest label of all splits + 1.
        keys: {feature: name of its array}, such as {"image": "photos", "label": "species"}, of a file without splits.
        test_fraction: the part of the examples in "test", of a file without splits.

    Returns:
        A source of {feature: [n, ...]}, labels as int64 [n]; class names, sorted, if the labels are texts, which a file
        without splits may have.

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
            if keys or not any(array.rpartition("_")[2] in _SPLITS and "_" in array for array in file.files):
                return _divide_npz(file, split, num_classes, keys, test_fraction, name)
            return _read_npz(file, split, num_classes, name)
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


def _divide_npz(
    file: np.lib.npyio.NpzFile,
    split: str,
    num_classes: int | None,
    keys: Mapping[str, str] | None,
    test_fraction: float,
    name: str,
) -> Arrays:
    """Returns the source of a file without splits; see `npz`."""
    for array in (keys or {}).values():
        if array not in file.files:
            raise ValueError(f"{name} has no array {array!r}. It has: {', '.join(file.files) or 'none'}.")
    try:
        named = {key: file[array] for key, array in keys.items()} if keys else _named_features(file)
    except ValueError as error:
        raise ValueError(f"{name}: an array cannot be used: {error}") from None
    classes = None
    label = named.get("label")
    if label is not None and label.dtype.kind in "US":
        texts, named["label"] = np.unique(label, return_inverse=True)
        classes = [one.decode() if isinstance(one, bytes) else str(one) for one in texts]
        num_classes = len(classes)
    if "image" in named and named["image"].ndim == 3:
        named["image"] = named["image"][..., np.newaxis]
    features = _check_features(named, name)
    count = len(next(iter(features.values())))
    rows, part = splits_lib.by_ratio(split, count, test_fraction=test_fraction, source=name)
    labels = {part.name: features["label"]} if "label" in features else {}
    num_classes = _count_classes(labels, num_classes, name)
    return Arrays({key: values[rows] for key, values in features.items()}, part, num_classes, name, classes)


def _named_features(file: np.lib.npyio.NpzFile) -> dict[str, np.ndarray]:
    """Returns the arrays by the features that they probably are; raises ValueError if two are the same one."""
    found: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for array in file.files:
        values = file[array]
        feature = feature_of(array, values)
        if feature in found:
            raise ValueError(
                f"{names[feature]!r} and {array!r} both are {feature!r}. Choose: "
                'keys={"image": ARRAY, "label": ARRAY} of the source.'
            )
        found[feature], names[feature] = values, array
    return found


def feature_of(array: str, values: np.ndarray) -> str:
    """Returns the feature that an array of this name probably is, in a file without splits."""
    if array.lower() in _INPUTS:
        return "image" if values.ndim in (3, 4) else "inputs"
    if array.lower() in _LABELS:
        return "label" if values.dtype.kind in "biuUS" and values.ndim <= 2 else "targets"
    return array


def _read_npz(file: np.lib.npyio.NpzFile, split: str, num_classes: int | None, name: str) -> Arrays:
    keys: dict[str, dict[str, str]] = {}
    for key in file.files:
        feature, _, part = key.rpartition("_")
        if feature and part:
            keys.setdefault(part, {})[_KERAS_NAMES.get(feature, feature)] = key
    chosen = splits_lib.split_name(split, keys, source=name)

    def read(part: str, feature: str) -> np.ndarray:
        try:
            values = file[keys[part][feature]]
        except ValueError as error:
            raise ValueError(f"{name}: the array {keys[part][feature]!r} cannot be read: {error}") from None
        return values[..., np.newaxis] if feature == "image" and values.ndim == 3 else values

    features = _check_features(
        {feature: read(chosen, feature) for feature in keys[chosen]}, f"{name}, split {chosen!r}"
    )
    labels = {
        part: features["label"] if part == chosen else _check_label(read(part, "label"), f"{name}, split {part!r}")
        for part in keys
        if "label" in keys[part] and keys[part].keys() >= keys[chosen].keys()
    }
    return _slice(split, {chosen: features}, _count_classes(labels, num_classes, name), name)


def _fingerprint(features: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(features.items()):
        rows = values if values.nbytes <= _WHOLE_BYTES else values[:: max(1, len(values) // _FINGERPRINT_ROWS)]
        digest.update(f"{name} {values.dtype} {values.shape} ".encode() + np.ascontiguousarray(rows).tobytes())
    return digest.hexdigest()[:16]


def _slice(
    split: str,
    parts: dict[str, dict[str, np.ndarray]],
    num_classes: int | None,
    name: str,
    classes: Sequence[str] | None = None,
) -> Arrays:
    lengths = {part: len(next(iter(features.values()))) for part, features in parts.items()}
    part = splits_lib.resolve(split, lengths, source=name)
    return Arrays(parts[part.name], part, num_classes, name, classes)


def _check_features(features: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    for key, values in features.items():
        if np.ma.is_masked(values):
            raise ValueError(f"{where}: {key!r} has masked values, which no source keeps: fill them (numpy.ma.filled).")
    features = {key: np.asarray(values) for key, values in features.items()}
    if not features:
        raise ValueError(f"{where} has no arrays.")
    for key, values in features.items():
        if values.dtype.hasobject or values.ndim == 0 or not _is_known(values.dtype):
            raise ValueError(
                f"{where}: {key!r} must be an array of numbers or bytes with shape [examples, ...]. Received: "
                f"{values.dtype} {list(values.shape)}"
            )
    lengths = {key: len(values) for key, values in features.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise ValueError(f"{where}: its arrays must have equal lengths. Received: {listed}.")
    return {key: _check_label(values, where) if key == "label" else values for key, values in features.items()}


def _is_known(dtype: np.dtype) -> bool:
    try:
        return bool(tf.as_dtype(dtype))
    except TypeError:  # Dates, structures, long double.
        return False


def _check_label(label: np.ndarray, where: str) -> np.ndarray:
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim != 1 or label.dtype.kind not in "biu":
        raise ValueError(
            f"{where}: labels must be integers [examples]. Received: {label.dtype} {list(label.shape)}. "
            "Use another name for other targets, such as `targets` or `targets_train`."
        )
    return label.astype(np.int64)


def _count_classes(labels: dict[str, np.ndarray], num_classes: int | None, name: str) -> int | None:
    filled = {part: label for part, label in labels.items() if len(label)}
    if num_classes is None and filled:
        num_classes = int(max(label.max() for label in filled.values())) + 1
    for part, label in filled.items():
        bad = np.flatnonzero((label < 0) | (label >= num_classes))
        if len(bad):
            raise ValueError(
                f"{name}, split {part!r}: labels must be within 0..{num_classes - 1} ({num_classes} classes). "
                f"Received: {label[bad[0]]} for example {bad[0]}, and {len(bad) - 1} more."
            )
    return num_classes
