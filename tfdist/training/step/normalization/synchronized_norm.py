"""Synchronised batch normalisation: statistics over the batches of all replicas, with one all-reduce per layer.

Keras sums x, x**2 and the count in three collectives, counts the example that stands in for an empty shard, and ignores
`synchronized` if there is a mask. Layers with `make_exact` sum all three in one collective, each example times its mask
and times whether the shard is present. The formulas are Keras': weights and moving statistics are equal to those of
Keras' layer on one device, up to rounding.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdist.training.step import gradients as gradients_lib


class _Trace(threading.local):
    """The replicas of a process are traced in threads of their own, in turns."""

    # float32 []: 0.0 if the replica's shard is empty, else 1.0; None: it is never empty.
    present: tf.Tensor | None = None


_trace = _Trace()


@contextlib.contextmanager
def shard_present(present: tf.Tensor) -> Iterator[None]:
    """Traces the forward pass of a shard that may be empty: `present`, float32 [], is then 0.0, else 1.0."""
    _trace.present = present
    try:
        yield
    finally:
        _trace.present = None


def normalizations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the batch normalisation layers of `model`, those of nested models included."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the synchronised layers among `normalizations`."""
    return [
        layer
        for layer in normalizations(model)
        # Not those whose class computes something else. Keras 3.12 has no renorm.
        if layer.synchronized and not getattr(layer, "renorm", False)
        if type(layer).call is keras.layers.BatchNormalization.call
    ]


def make_exact(model: keras.Model) -> None:
    """Replaces `call` of the synchronised batch normalisation layers of `model`, on the objects."""
    for layer in layers(model):
        layer.call = functools.partial(_call, layer)


def _call(
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    if not (training and layer.trainable):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    x = tf.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    mean, variance = _moments(layer, x, mask)
    update_moving_statistics(layer, mean, variance)
    outputs = keras.ops.batch_normalization(
        x,
        mean,
        variance,
        axis=layer.axis,
        offset=tf.cast(layer.beta, x.dtype) if layer.center else None,
        scale=tf.cast(layer.gamma, x.dtype) if layer.scale else None,
        epsilon=layer.epsilon,
    )
    return tf.cast(outputs, layer.compute_dtype)


def update_moving_statistics(layer: keras.layers.BatchNormalization, mean: tf.Tensor, variance: tf.Tensor) -> None:
    """Moves the layer's statistics towards those of a batch, [channels] each."""
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        moving.assign(tf.cast(moving, value.dtype) * layer.momentum + value * (1.0 - layer.momentum))


def _moments(
    layer: keras.layers.BatchNormalization, x: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance [channels] over the examples of all replicas that are neither masked nor absent.

    Raises:
        ValueError: the shape of the mask does not fit.
    """
    axis = layer.axis % x.shape.rank
    axes = [one for one in range(x.shape.rank) if one != axis]
    squares = tf.square(x)
    count = tf.size(x) // tf.shape(x)[axis]
    if mask is not None:
        if mask.shape.rank != x.shape.rank - 1 or axis != x.shape.rank - 1:
            raise ValueError(
                f"Layer {layer.name!r} needs a mask of one dimension less than its inputs, and channels last. "
                f"Received: a mask of shape {mask.shape}, inputs of shape {x.shape}, axis={layer.axis}"
            )
        weights = tf.broadcast_to(tf.cast(mask, x.dtype)[..., tf.newaxis], tf.shape(x))
        x, squares, count = x * weights, squares * weights, tf.reduce_sum(weights[..., 0])
    count = tf.cast(count, x.dtype)
    # With keepdims the gradient needs no shape that TensorFlow computes on a GPU, and that the host waits for.
    parts = [tf.reshape(tf.reduce_sum(one, axes, keepdims=True), [x.shape[axis]]) for one in (x, squares)]
    sums = tf.concat([*parts, count[tf.newaxis]], axis=0)
    if _trace.present is not None:
        sums *= tf.cast(_trace.present, x.dtype)
    total, total_squares, count = tf.split(gradients_lib.sum_value(sums), [x.shape[axis], x.shape[axis], 1])
    mean = tf.math.divide_no_nan(total, count)
    return mean, tf.maximum(tf.math.divide_no_nan(total_squares, count) - tf.square(mean), 0.0)
