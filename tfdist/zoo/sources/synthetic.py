"""Data made up by formula, of any shape and any length."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.zoo import splits, stateless_random


class Synthetic:
    """See `synthetic`."""

    def __init__(self, first: int, count: int, shape: tuple[int, ...], dtype: tf.DType, num_classes: int, high: float):
        self.num_classes = num_classes
        self._first = first
        self._count = count
        self._shape = shape
        self._dtype = dtype
        self._high = high

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._shape))
        return f"synthetic: {self._count} examples of {shape} {self._dtype.name}, {self.num_classes} classes"

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": [n, *shape], "label": int64 [n]}."""
        values = int(np.prod(self._shape))
        ids = ids + self._first
        seeds = tf.stack([tf.zeros_like(ids), ids], axis=1)
        label = tf.cast(stateless_random.uniform(seeds, 0, 1)[:, 0] * self.num_classes, tf.int64)
        # A class has a picture of its own, and an example is that picture and noise in equal parts.
        pictures = stateless_random.uniform(tf.stack([tf.ones_like(label), label], axis=1), 0, values)
        image = (pictures + stateless_random.uniform(seeds, 1, values)) * (0.5 * self._high)
        return {"image": tf.reshape(tf.cast(image, self._dtype), [-1, *self._shape]), "label": label}

    def verify(self) -> None:
        """Returns: there is nothing to be damaged."""


def synthetic(
    split: str,
    *,
    shape: Sequence[int] = (32, 32, 3),
    dtype: str = "uint8",
    high: float | None = None,
    num_classes: int = 10,
    num_examples: int = 50_000,
    num_test_examples: int = 10_000,
) -> Synthetic:
    """Examples computed from their ids: nothing is stored, whatever the number.

    The mean of a class is a picture of its own, so that a model can learn to tell the classes apart, and its loss
    falls.

    Args:
        split: "train" or "test", with or without a slice. The two have no example in common.
        shape: of an example, without the axis of examples.
        dtype: of an example's values.
        high: values lie in [0, high); None: 256 for integers, 1 for floats.
        num_classes: the number of classes.
        num_examples: examples in "train".
        num_test_examples: examples in "test".

    Returns:
        A source of {"image": dtype [n, *shape], "label": int64 [n]}.

    Raises:
        ValueError: the split does not exist or is empty; a number is out of its range; there is no such dtype.
    """
    for name, value in (("num_classes", num_classes), ("num_examples", num_examples)):
        if not (isinstance(value, int) and value >= 1):
            raise ValueError(f"synthetic: {name} must be a whole number from 1. Received: {value!r}")
    if not (isinstance(num_test_examples, int) and num_test_examples >= 0):
        raise ValueError(f"synthetic: num_test_examples must be a whole number from 0. Received: {num_test_examples!r}")
    if not shape or not all(isinstance(length, int) and length >= 1 for length in shape):
        raise ValueError(f"synthetic: shape must be whole numbers from 1. Received: {shape!r}")
    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        kind = tf.string
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"synthetic: dtype must be an integer or a float type, as uint8. Received: {dtype!r}")
    if high is None:
        high = 256 if kind.is_integer else 1
    if not 0 < high <= (kind.max + 1 if kind.is_integer else kind.max):
        raise ValueError(f"synthetic: high must be above 0 and within {kind.name}. Received: {high!r}")
    part = splits.resolve(split, {"train": num_examples, "test": num_test_examples}, source="synthetic")
    offset = num_examples if part.name == "test" else 0
    return Synthetic(offset + part.start, part.stop - part.start, tuple(shape), kind, num_classes, high)


class Line:
    """See `line`."""

    num_classes = None

    def __init__(self, first: int, count: int, m: float, n: float, noise: float):
        self._first, self._count = first, count
        self._m, self._n, self._noise = m, n, noise

    def __len__(self) -> int:
        return self._count

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the points `ids`, int64 [n], as {"x": float32 [n, 1], "y": float32 [n, 1]}."""
        ids = ids + self._first
        draws = 2.0 * stateless_random.uniform(tf.stack([tf.zeros_like(ids), ids], axis=1), 0, 2) - 1.0
        x, noise = draws[:, :1], draws[:, 1:]
        return {"x": x, "y": self._m * x + self._n + self._noise * noise}

    def verify(self) -> None:
        """Returns: there is nothing to be damaged."""


def line(
    split: str,
    *,
    m: float = 2.0,
    n: float = 0.5,
    noise: float = 0.3,
    num_examples: int = 64,
    num_test_examples: int = 0,
) -> Line:
    """Points about the line y = m x + n, with x uniform in [-1, 1).

    Args:
        split: "train" or "test", with or without a slice. The two have no point in common.
        m: the slope.
        n: the value at x = 0.
        noise: y is off the line by up to so much, uniformly.
        num_examples: points in "train".
        num_test_examples: points in "test".

    Returns:
        A source of {"x": float32 [n, 1], "y": float32 [n, 1]}.

    Raises:
        ValueError: the split does not exist or is empty.
    """
    part = splits.resolve(split, {"train": num_examples, "test": num_test_examples}, source="line")
    offset = num_examples if part.name == "test" else 0
    return Line(offset + part.start, part.stop - part.start, m, n, noise)
