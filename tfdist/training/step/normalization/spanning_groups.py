"""Batch normalisation in groups of fixed size where a group spans replicas.

A group is a fixed set of consecutive examples of the global batch. If the group size divides a replica's shard, the
layer needs no communication (`tfdist.zoo.normalization`). Otherwise each replica adds up its examples of a group, one
all-reduce per layer completes the sums, and each example is normalised with the statistics of its group. Weights and
moving statistics are those of one replica, up to rounding.
"""

import functools
import math
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config.schema import Config
from tfdist.training.step import gradients as gradients_lib
from tfdist.training.step.normalization import synchronized_norm


def install(model: keras.Model, config: Config, num_replicas: int) -> bool:
    """Replaces `call` of the layers whose groups span replicas, on the objects.

    Args:
        model: its layers with groups have the attribute `group_size`.
        config: gives the global batch and its division.

    Returns:
        Whether there are any: the forward pass then communicates.

    Raises:
        ValueError: groups do not divide the global batch, or span replicas with micro-batches or local steps.
    """
    batch, parts = config.data.batch_size, config.train.micro_batches * config.train.local_steps
    shard = batch // (num_replicas * parts)
    spanning = [layer for layer in _layers(model) if shard % layer.group_size]
    for layer in spanning:
        size = layer.group_size
        if batch % size:
            near = sorted({max(1, batch // size) * size, (batch // size + 1) * size})
            raise ValueError(
                f"config.data.batch_size={batch} is no multiple of group_size={size} of layer {layer.name!r}: set it "
                f"to {' or '.join(map(str, near))}, or set another group_size in config.model."
            )
        if parts > 1:
            divisors = [n for n in range(1, shard + 1) if shard % n == 0]
            raise ValueError(
                f"group_size={size} of layer {layer.name!r} does not divide the {shard} examples that a replica "
                f"processes at once: batch_size={batch} / {num_replicas} replicas / {parts} (train.micro_batches x "
                "train.local_steps). Groups span replicas only if both are 1. Reduce them, or set group_size in "
                f"config.model to one of {', '.join(map(str, divisors))}."
            )
    for layer in spanning:
        layer.call = functools.partial(_call, layer, layer.call, shard, batch)
    return bool(spanning)


def group_size(model: keras.Model) -> int:
    """Returns how many examples belong together: the least common multiple of the sizes of all groups, or 1."""
    return math.lcm(*(layer.group_size for layer in _layers(model)))


def _layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    layers = synchronized_norm.normalizations(model)
    return [layer for layer in layers if getattr(layer, "group_size", None)]


def _call(
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
    # An estimate of the mean that all replicas hold: subtracted, it keeps the variance from cancelling out.
    shift = tf.stop_gradient(tf.cast(layer.moving_mean, x.dtype))
    mean, variance = _moments(x - shift, pieces, global_batch // layer.group_size, layer.group_size)
    mean += shift
    synchronized_norm.update_moving_statistics(layer, tf.reduce_mean(mean, 0), tf.reduce_mean(variance, 0))
    scale = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        scale *= tf.cast(layer.gamma, x.dtype)
    offset = -mean * scale
    if layer.center:
        offset += tf.cast(layer.beta, x.dtype)
    outputs = x * _per_example(scale, pieces, x.shape) + _per_example(offset, pieces, x.shape)
    return tf.cast(outputs, layer.compute_dtype)


def _pieces(shard: int, group_size: int) -> list[tuple[int, int]]:
    """Returns (group, examples) for each group that this replica has examples of, in the order of its shard."""
    # Known when the replica is traced: slices are static, and no index travels between host and device.
    replica = int(tf.get_static_value(replicas_lib.replica_id()))
    groups, counts = np.unique((replica * shard + np.arange(shard)) // group_size, return_counts=True)
    return list(zip(groups.tolist(), counts.tolist(), strict=True))


def _moments(
    x: tf.Tensor, pieces: list[tuple[int, int]], num_groups: int, group_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and biased variance of all groups, [num_groups, channels], the same on every replica."""
    axes = list(range(1, x.shape.rank - 1))
    values = tf.concat([tf.reduce_sum(x, axes), tf.reduce_sum(tf.square(x), axes)], axis=-1)
    own = tf.stack([tf.reduce_sum(part, 0) for part in tf.split(values, [count for _, count in pieces])])
    first = pieces[0][0]
    sums = gradients_lib.sum_value(tf.pad(own, [[first, num_groups - first - len(pieces)], [0, 0]]))
    mean, mean_of_squares = tf.split(sums / (group_size * math.prod(x.shape[1:-1])), 2, axis=-1)
    return mean, tf.maximum(mean_of_squares - tf.square(mean), 0.0)


def _per_example(values: tf.Tensor, pieces: list[tuple[int, int]], shape: tf.TensorShape) -> tf.Tensor:
    """Repeats the row of each example's group: [num_groups, channels] -> [examples, 1, ..., channels].

    By slices instead of `tf.gather`, whose gradient adds up in an order that varies on GPUs.
    """
    rows = [tf.broadcast_to(values[group : group + 1], [count, shape[-1]]) for group, count in pieces]
    return tf.reshape(tf.concat(rows, 0), [shape[0], *[1] * (shape.rank - 2), shape[-1]])
