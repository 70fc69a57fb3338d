"""Layers that depend on the whole batch: statistics over examples of several replicas, penalties.

Synchronised batch normalisation takes statistics over the batches of all replicas, with one all-reduce per layer. Keras
sums x, x**2 and the count in three collectives, counts the example that stands in for an empty shard, and ignores
`synchronized` if there is a mask. `make_exact` makes layers sum all three in one collective, in which masked examples
and empty shards count as 0. The formulas are Keras': weights and moving statistics are those of Keras' layer on one
device, up to rounding.

A group is a fixed set of consecutive examples of the global batch. If the group size divides a replica's shard, the
layer itself computes the statistics without communication. Otherwise, each replica adds up its examples of a group, one
all-reduce per layer completes the sums, and each example is normalised with the statistics of its group. Weights and
moving statistics are those on one replica, up to rounding.
"""

import functools
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching
from tfdist.config.schema import Config
from tfdist.training.step import collectives
from tfdist.training.step.layers import model_layers


class _Trace(threading.local):
    """Per thread: each replica of a process is traced in its own thread, in turn."""

    # float32 []: 0.0 if the replica's shard is empty, else 1.0; None: it is never empty.
    present: tf.Tensor | None = None


_trace = _Trace()


def shard_present(present: tf.Tensor) -> AbstractContextManager[None]:
    """In the block, statistics leave out an empty shard; `present`, float32 []: 0.0 if the shard is empty, else 1.0."""
    return patching.set_in_block(_trace, present=present)


def normalizations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the batch normalisation layers of `model`, including those of nested models."""
    return [layer for layer in model_layers.all_layers(model) if isinstance(layer, keras.layers.BatchNormalization)]


def synchronized_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the synchronised layers among `normalizations`."""
    return [
        layer
        for layer in normalizations(model)
        # Not layers whose class overrides `call`. Keras 3.12 has no renorm.
        if layer.synchronized and not getattr(layer, "renorm", False)
        if type(layer).call is keras.layers.BatchNormalization.call
    ]


def make_exact(model: keras.Model) -> None:
    """Replaces `call` of the synchronised batch normalisation layers of `model`, on the objects."""
    for layer in synchronized_layers(model):
        patching.replace_until_end(layer, "call", functools.partial(_call_synchronized, layer))


def _call_synchronized(
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    if not (training and layer.trainable):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    x = tf.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    mean, variance = _global_moments(layer, x, mask)
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


def _global_moments(
    layer: keras.layers.BatchNormalization, x: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance [channels] over all replicas' examples that are neither masked nor absent."""
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
    # With keepdims: without it, the gradient needs a shape that is computed on the GPU, and the host waits for it.
    parts = [tf.reshape(tf.reduce_sum(one, axes, keepdims=True), [x.shape[axis]]) for one in (x, squares)]
    sums = tf.concat([*parts, count[tf.newaxis]], axis=0)
    if _trace.present is not None:
        sums *= tf.cast(_trace.present, x.dtype)
    total, total_squares, count = tf.split(collectives.sum_differentiable(sums), [x.shape[axis], x.shape[axis], 1])
    return _moments_of_sums(total, total_squares, count)


def _moments_of_sums(total: tf.Tensor, total_squares: tf.Tensor, count: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance from the sums of `count` values and of their squares; 0 if there are none."""
    mean = tf.math.divide_no_nan(total, count)
    return mean, tf.maximum(tf.math.divide_no_nan(total_squares, count) - tf.square(mean), 0.0)


def is_synchronized(model: keras.Model) -> bool:
    """Returns whether any layer of `model`, of any class, has `synchronized` set, to normalise over all replicas."""
    return any(getattr(layer, "synchronized", False) for layer in model_layers.all_layers(model))


def spanning_layers(model: keras.Model, config: Config, num_replicas: int) -> list[keras.layers.BatchNormalization]:
    """Returns the layers, with the attribute `group_size`, whose groups span replicas."""
    shard = config.data.batch_size // (num_replicas * config.train.micro_batches)
    return [layer for layer in _grouped_layers(model) if shard % layer.group_size]


def install_groups(model: keras.Model, config: Config, num_replicas: int) -> None:
    """Replaces `call` of the layers whose groups span replicas, on the objects.

    Raises:
        ValueError: groups do not divide the global batch, or span replicas with micro-batches.
    """
    batch, parts = config.data.batch_size, config.train.micro_batches
    shard = batch // (num_replicas * parts)
    spanning = spanning_layers(model, config, num_replicas)
    for layer in spanning:
        size = layer.group_size
        if batch % size:
            near = sorted({max(1, batch // size) * size, (batch // size + 1) * size})
            raise ValueError(
                f"config.data.batch_size={batch} is not a multiple of group_size={size} of layer {layer.name!r}: set "
                f"it to {' or '.join(map(str, near))}, or set another group_size in config.model."
            )
        if parts > 1:
            divisors = [n for n in range(1, shard + 1) if shard % n == 0]
            raise ValueError(
                f"group_size={size} of layer {layer.name!r} does not divide the {shard} examples that a replica "
                f"processes at once: batch_size={batch} / {num_replicas} replicas / {parts} "
                "(train.micro_batches). Groups can span replicas only if train.micro_batches is 1. Reduce it, or "
                f"set group_size in config.model to one of {', '.join(map(str, divisors))}."
            )
    for layer in spanning:
        patching.replace_until_end(layer, "call", functools.partial(_call_in_groups, layer, layer.call, shard, batch))


def group_size(model: keras.Model) -> int:
    """Returns how many examples belong together: the least common multiple of the sizes of all groups, or 1."""
    return math.lcm(*(layer.group_size for layer in _grouped_layers(model)))


def _grouped_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    return [layer for layer in normalizations(model) if getattr(layer, "group_size", None)]


def _call_in_groups(
    layer: keras.layers.BatchNormalization,
    without_groups: Callable[..., tf.Tensor],
    shard: int,
    global_batch: int,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    if not (training and layer.trainable):
        return without_groups(inputs, training=training, mask=mask)
    if mask is not None or layer.axis not in (-1, inputs.shape.rank - 1) or inputs.shape[0] != shard:
        raise ValueError(
            f"The groups of {layer.group_size} examples of layer {layer.name!r} span replicas, which needs inputs "
            f"[{shard}, ..., channels] without a mask. Received: inputs of shape {inputs.shape}, axis={layer.axis}, "
            f"{'no mask' if mask is None else 'a mask'}"
        )
    x = tf.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    pieces = _pieces(shard, layer.group_size)
    # Subtract an estimate of the mean, which is equal on all replicas, against cancellation in the variance.
    shift = tf.stop_gradient(tf.cast(layer.moving_mean, x.dtype))
    mean, variance = _group_moments(x - shift, pieces, global_batch // layer.group_size, layer.group_size)
    mean += shift
    update_moving_statistics(layer, tf.reduce_mean(mean, 0), tf.reduce_mean(variance, 0))
    scale = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        scale *= tf.cast(layer.gamma, x.dtype)
    offset = -mean * scale
    if layer.center:
        offset += tf.cast(layer.beta, x.dtype)
    outputs = x * _per_example(scale, pieces, x.shape) + _per_example(offset, pieces, x.shape)
    return tf.cast(outputs, layer.compute_dtype)


def _pieces(shard: int, group_size: int) -> list[tuple[int, int]]:
    """Returns (group, number of examples) for each group in this replica's shard, in the order of the shard."""
    # Known when the replica is traced: slices are static, and no index is copied between host and device.
    replica = int(tf.get_static_value(replicas_lib.replica_id()))
    groups, counts = np.unique((replica * shard + np.arange(shard)) // group_size, return_counts=True)
    return list(zip(groups.tolist(), counts.tolist(), strict=True))


def _group_moments(
    x: tf.Tensor, pieces: list[tuple[int, int]], num_groups: int, group_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance of all groups, [num_groups, channels], the same on every replica."""
    axes = list(range(1, x.shape.rank - 1))
    values = tf.concat([tf.reduce_sum(x, axes), tf.reduce_sum(tf.square(x), axes)], axis=-1)
    local_sums = tf.stack([tf.reduce_sum(part, 0) for part in tf.split(values, [count for _, count in pieces])])
    first = pieces[0][0]
    sums = collectives.sum_differentiable(tf.pad(local_sums, [[first, num_groups - first - len(pieces)], [0, 0]]))
    return _moments_of_sums(*tf.split(sums, 2, axis=-1), group_size * math.prod(x.shape[1:-1]))


def _per_example(values: tf.Tensor, pieces: list[tuple[int, int]], shape: tf.TensorShape) -> tf.Tensor:
    """Repeats the row of each example's group: [num_groups, channels] -> [examples, 1, ..., channels].

    Uses slices, because the gradient of `tf.gather` adds up in an order that varies on GPUs.
    """
    rows = [tf.broadcast_to(values[group : group + 1], [count, shape[-1]]) for group, count in pieces]
    return tf.reshape(tf.concat(rows, 0), [shape[0], *[1] * (shape.rank - 2), shape[-1]])


def check_penalties(model: keras.Model, num_replicas: int) -> None:
    """Raises ValueError if the activity penalties of `model` depend on the number of replicas.

    Keras takes their mean over a batch since 3.14, and their sum before.
    """
    sums = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14)
    for layer in model_layers.all_layers(model):
        if sums and num_replicas > 1 and getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"Layer {layer.name!r} has an activity_regularizer. Keras {keras.__version__} sums it over a replica's "
                "batch: it would depend on the number of replicas. Install Keras >= 3.14, or train on one replica."
            )
