"""Synthetic data of any shape and length, computed from example ids."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.zoo import splits, stateless_random


class Computed:
    """Examples [first, first + count) of a function of ids, int64 [n] -> {feature: [n, ...]}; nothing is stored."""

    def __init__(self, compute: Callable, first: int, count: int, num_classes: int | None, text: str):
        self.num_classes = num_classes
        self._compute, self._first, self._count, self._text = compute, first, count, text

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        name, _, kind = self._text.partition(", ")
        return f"{name}: {self._count} examples of {kind}"

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {feature: [n, ...]}."""
        return self._compute(ids + self._first)


def of_split(
    split: str, compute: Callable, num_examples: int, num_test_examples: int, num_classes: int | None, text: str
) -> Computed:
    """Returns the examples of "train" or, after those, of "test"."""
    name = text.partition(",")[0]
    part = splits.resolve(split, {"train": num_examples, "test": num_test_examples}, source=name)
    offset = num_examples if part.name == "test" else 0
    return Computed(compute, offset + part.start, part.stop - part.start, num_classes, text)


def synthetic(
    split: str,
    *,
    shape: Sequence[int] = (32, 32, 3),
    dtype: str = "uint8",
    num_classes: int = 10,
    num_examples: int = 50_000,
    num_test_examples: int = 10_000,
) -> Computed:
    """Examples computed from their ids: each is the mean of noise and a picture of its class, so it can be learned.

    Args:
        split: "train" or "test", with or without a slice. They have no example in common.
        dtype: integers lie in [0, 256), or in [0, 128) for int8; floats in [0, 1).

    Returns:
        A source of {"image": dtype [n, *shape], "label": int64 [n]}.

    Raises:
        ValueError: the split does not exist or is empty, a number is out of range, or the dtype is unknown.
    """
    numbers = {"num_classes": num_classes, "num_examples": num_examples, "num_test_examples": num_test_examples}
    numbers |= {"shape": min(shape, default=0)}
    for name, value in numbers.items():
        least = int(name != "num_test_examples")
        if not isinstance(value, int) or value < least:
            raise ValueError(f"synthetic: {name} needs integers of at least {least}. Received: {value!r}")
    kind = tf.as_dtype(dtype)
    high = min(256, kind.max + 1) if kind.is_integer else 1
    values = int(np.prod(shape))

    def compute(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        seeds = tf.stack([tf.zeros_like(ids), ids], axis=1)
        label = tf.cast(stateless_random.uniform(seeds, 0, 1)[:, 0] * num_classes, tf.int64)
        pictures = stateless_random.uniform(tf.stack([tf.ones_like(label), label], axis=1), 0, values)
        image = (pictures + stateless_random.uniform(seeds, 1, values)) * (0.5 * high)
        return {"image": tf.reshape(tf.cast(image, kind), [-1, *shape]), "label": label}

    text = f"synthetic, {'x'.join(map(str, shape))} {kind.name}, {num_classes} classes"
    return of_split(split, compute, num_examples, num_test_examples, num_classes, text)
