"""Synthetic data of any shape and length, computed from example ids."""

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
        # Each class has a picture; an example is the mean of the picture and noise.
        pictures = stateless_random.uniform(tf.stack([tf.ones_like(label), label], axis=1), 0, values)
        image = (pictures + stateless_random.uniform(seeds, 1, values)) * (0.5 * self._high)
        return {"image": tf.reshape(tf.cast(image, self._dtype), [-1, *self._shape]), "label": label}

    def verify(self) -> None:
        """Does nothing: there are no files."""


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
    """Examples computed from their ids; nothing is stored.

    Each class has its own mean image, so that a model can learn to classify them.

    Args:
        split: "train" or "test", with or without a slice. They have no example in common.
        shape: the shape of one example.
        dtype: an integer or float dtype.
        high: values lie in [0, high); None: 256 for integers, 1 for floats.
        num_classes: the number of classes.
        num_examples: examples in "train".
        num_test_examples: examples in "test".

    Returns:
        A source of {"image": dtype [n, *shape], "label": int64 [n]}.

    Raises:
        ValueError: the split does not exist or is empty, a number is out of range, or the dtype is unknown.
    """
    for name, value in (("num_classes", num_classes), ("num_examples", num_examples)):
        if not (isinstance(value, int) and value >= 1):
            raise ValueError(f"synthetic: {name} must be an integer from 1. Received: {value!r}")
    if not (isinstance(num_test_examples, int) and num_test_examples >= 0):
        raise ValueError(f"synthetic: num_test_examples must be an integer from 0. Received: {num_test_examples!r}")
    if not shape or not all(isinstance(length, int) and length >= 1 for length in shape):
        raise ValueError(f"synthetic: shape must be integers from 1. Received: {shape!r}")
    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        kind = tf.string
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"synthetic: dtype must be an integer or float dtype, such as uint8. Received: {dtype!r}")
    if high is None:
        high = 256 if kind.is_integer else 1
    if not 0 < high <= (kind.max + 1 if kind.is_integer else kind.max):
        raise ValueError(f"synthetic: high must be above 0 and representable in {kind.name}. Received: {high!r}")
    part = splits.resolve(split, {"train": num_examples, "test": num_test_examples}, source="synthetic")
    offset = num_examples if part.name == "test" else 0
    return Synthetic(offset + part.start, part.stop - part.start, tuple(shape), kind, num_classes, high)


class Line:
    """See `line`."""

    num_classes = None

    def __init__(self, first: int, count: int, m: float, n: float, noise: float, width: float):
        self._first, self._count = first, count
        self._m, self._n, self._noise, self._width = m, n, noise, width

    def __len__(self) -> int:
        return self._count

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the points `ids`, int64 [n], as {"x": float32 [n, 1], "y": float32 [n, 1]}."""
        ids = ids + self._first
        draws = 2.0 * stateless_random.uniform(tf.stack([tf.zeros_like(ids), ids], axis=1), 0, 2) - 1.0
        x, noise = self._width * draws[:, :1], draws[:, 1:]
        return {"x": x, "y": self._m * x + self._n + self._noise * noise}

    def verify(self) -> None:
        """Does nothing: there are no files."""


def line(
    split: str,
    *,
    m: float = 2.0,
    n: float = 0.5,
    noise: float = 0.3,
    num_examples: int = 64,
    num_test_examples: int = 0,
    width: float = 1.0,
) -> Line:
    """Points near the line y = m x + n, with x uniform in [-width, width).

    Args:
        split: "train" or "test", with or without a slice. They have no point in common.
        m: the slope.
        n: the value at x = 0.
        noise: maximum distance of y from the line, uniformly distributed.
        num_examples: points in "train".
        num_test_examples: points in "test".
        width: half of the interval of x.

    Returns:
        A source of {"x": float32 [n, 1], "y": float32 [n, 1]}.

    Raises:
        ValueError: the split does not exist or is empty.
    """
    part = splits.resolve(split, {"train": num_examples, "test": num_test_examples}, source="line")
    offset = num_examples if part.name == "test" else 0
    return Line(offset + part.start, part.stop - part.start, m, n, noise, width)
