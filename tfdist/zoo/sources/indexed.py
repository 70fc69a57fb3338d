"""Any Python object with `len` and `[i]`: a dataset of Hugging Face or grain, a PyTorch dataset, a list of dicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import specs
from tfdist.zoo import splits

# What a tuple (x, y) is called.
_PAIR = ("image", "label")


class indexed:
    """Examples of any Python object with `len` and `[i]`.

    This can be a dataset of Hugging Face, a `grain.MapDataset`, a PyTorch dataset that returns arrays, or a list.
    Example i must always be the same; augmentation belongs in `config.data.prepare`. Python reads one example after
    another: if that is slow, set config.data.cache="raw".

    Args:
        split: passed to `dataset` without its slice: "train" of "train[:90%]".
        dataset: your function, as "my_data:load": load(split, **arguments) returns the object.
        keys: {key of the batch: key of an example}, such as {"image": "img", "label": "fine_label"}; None: all keys
            of an example. A pair (x, y) is "image" and "label".
        arguments: keyword arguments of `dataset`.

    A source of {key: [n, ...]}; every example must have the shapes and dtypes of the first one.

    Raises:
        ValueError: `dataset` cannot be called, or what it returns has no `len` or no `[i]`.
    """

    def __init__(
        self,
        split: str,
        *,
        dataset: str,
        keys: Mapping[str, str] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ):
        name = f"indexed {dataset!r}"
        spec = {"target": dataset, **(arguments or {})}
        plain = split.partition("[")[0]
        loaded = specs.build(spec, plain, field="config.data.source.dataset")
        if not hasattr(loaded, "__len__") or not hasattr(loaded, "__getitem__"):
            raise ValueError(f"{name} must return an object with len() and [i]. Received: {type(loaded).__name__}")
        self._part = splits.resolve(split, {plain: len(loaded)}, source=name)
        self._dataset, self._keys, self._name = loaded, keys, name
        self._signature: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._signature = {key: (value.dtype, value.shape) for key, value in self._example(0).items()}
        label = next((old for new, old in (keys or {}).items() if new == "label"), "label")
        features = getattr(loaded, "features", None)  # Datasets of Hugging Face have it.
        feature = features.get(label) if isinstance(features, Mapping) else None
        self.classes = getattr(feature, "names", None)
        self.num_classes = len(self.classes) if self.classes else None

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def __repr__(self) -> str:
        sizes = ", ".join(f"{key} {dtype} {shape}" for key, (dtype, shape) in self._signature.items())
        return f"{self._name} {self._part.name}: {len(self)} examples of Python code, {sizes}"

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {key: [n, ...]}; Python code reads them one after another."""
        types = [tf.string if dtype.kind in "USO" else tf.as_dtype(dtype) for dtype, _ in self._signature.values()]
        columns = tf.nest.flatten(tf.numpy_function(self._read, [ids], types, stateful=False))
        shapes = [shape for _, shape in self._signature.values()]
        return {
            key: tf.ensure_shape(column, [*ids.shape, *shape])
            for key, column, shape in zip(self._signature, columns, shapes, strict=True)
        }

    def _read(self, ids: np.ndarray) -> list[np.ndarray]:
        examples = [self._example(int(number)) for number in ids]
        return [
            np.stack([example[key] for example in examples]).astype(object if dtype.kind in "USO" else dtype)
            for key, (dtype, _) in self._signature.items()
        ]

    def _example(self, number: int) -> dict[str, np.ndarray]:
        row = self._part.start + number
        example = self._dataset[row]
        if isinstance(example, tuple | list) and len(example) == len(_PAIR):
            example = dict(zip(_PAIR, example, strict=True))
        if not isinstance(example, Mapping) or not example:
            raise ValueError(
                f"{self._name}: an example must be a dict, or a pair (image, label). Received: {example!r} for example "
                f"{row}"
            )
        keys = self._keys or {key: key for key in example}
        if missing := [key for key in keys.values() if key not in example]:
            raise ValueError(f"{self._name}: example {row} has no {missing[0]!r}. It has: {', '.join(example)}.")
        found = {str(new): _as_array(example[old]) for new, old in keys.items()}
        if "image" in found and found["image"].ndim == 2:
            found["image"] = found["image"][..., np.newaxis]
        if "label" in found:
            label = found["label"]
            if label.dtype.kind not in "biuf" or (label != label.astype(np.int64)).any():
                raise ValueError(
                    f"{self._name}: a label is a whole number. Received: {label} for example {row}. Number the "
                    "classes in your function, or choose another column with keys."
                )
            found["label"] = label.astype(np.int64)
        for key, (dtype, shape) in self._signature.items():
            is_text, value = dtype.kind in "USO", found.get(key)
            if value is None or value.shape != shape or (value.dtype != dtype and not is_text):
                received = "none" if value is None else f"{value.dtype} {value.shape}"
                raise ValueError(
                    f"{self._name}: {key!r} of example {row} is {received}, but that of the first one {dtype} {shape}: "
                    "return the same dtype and shape for all, such as np.float32(...), in your function."
                )
        return found


def _as_array(value: Any) -> np.ndarray:
    """Returns a value as an array; a string as an object: NumPy's own strings lose zeros at their end."""
    return np.array(value, object) if isinstance(value, bytes | str) else np.asarray(value)
