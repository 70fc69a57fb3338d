"""Makes feeds of what scripts give: arrays, sources, tf.data datasets, Keras' own datasets and generators."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfdist.data.feeds import Examples, Feed

# Keras' own.
DEFAULT_BATCH_SIZE = 32


def open_feed(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool = False,
    class_weight: dict[int, float] | None = None,
    seed: int = 0,
) -> Feed:
    """Makes a feed of what `model.fit` would take; see `script.fit` for the arguments.

    Raises:
        ValueError: the data is of no known kind, its parts do not fit together, or it cannot be shared among workers.
    """
    if class_weight is not None and sample_weight is not None:
        raise ValueError("Give either class_weight or sample_weight: class_weight makes sample weights itself.")
    return _arrays(x, y, sample_weight, batch_size, steps, shuffle, class_weight, seed)


def _arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    batch_size: int | None,
    steps: int | None,
    shuffle: bool,
    class_weight: dict[int, float] | None,
    seed: int,
) -> Examples:
    if class_weight is not None:
        if tf.nest.is_nested(y):
            raise ValueError("class_weight is for models with a single output. Received several arrays of targets.")
        sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
    elif sample_weight is not None and tf.nest.is_nested(y) and not tf.nest.is_nested(sample_weight):
        sample_weight = tf.nest.map_structure(lambda _: sample_weight, y)
    parts = [x, *(part for part in (y, sample_weight) if part is not None)]
    if y is None and sample_weight is not None:
        raise ValueError("sample_weight needs targets. Received: y=None")
    with tf.device("CPU:0"):
        data = tf.nest.map_structure(_tensor, keras.tree.lists_to_tuples(tuple(parts)))
    sizes = {int(tensor.shape[0]) for tensor in tf.nest.flatten(data)}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"All arrays must have the same number of examples, at least 1. Received: {sorted(sizes)}")
    num_examples = sizes.pop()
    if batch_size is None:
        batch_size = -(-num_examples // steps) if steps else DEFAULT_BATCH_SIZE
    return Examples(
        # Tensors made outside of the map: arrays would become constants of its graph.
        read=lambda ids: tf.nest.map_structure(lambda tensor: tf.gather(tensor, ids), data),
        num_examples=num_examples,
        batch_size=min(batch_size, num_examples),
        seed=seed,
        shuffle=shuffle,
    )


def _tensor(array: Any) -> tf.Tensor:
    array = np.asarray(array) if not tf.is_tensor(array) else array
    if array.ndim == 0:
        raise ValueError(f"Arrays must have one row per example. Received: a single number, {array!r}")
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(array.dtype)):
        return tf.cast(tf.convert_to_tensor(array), keras.config.floatx())
    return tf.convert_to_tensor(array)
