"""Gathers dense values of any dtype from all replicas, for predictions."""

from typing import Any

import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices.bits import from_bits, to_bits


def gather(cluster: Cluster, values: Any) -> Any:
    """Concatenates the replicas' values [n, ...] of a structure, in replica order; `n` may differ. Collective.

    Args:
        values: dense tensors of any dtype but float8; on one replica, anything.
    """
    return tf.nest.map_structure(lambda value: _gather(cluster.strategy, value), values)


def of_first_replica(cluster: Cluster, values: Any) -> Any:
    """Returns what the first replica of this worker has of a structure of values that `strategy.run` returned."""
    return tf.nest.map_structure(lambda value: cluster.strategy.experimental_local_results(value)[0], values)


def first_rows(value: Any, count: tf.Tensor) -> Any:
    """Returns the first `count` (int64 []) rows of a dense, ragged or sparse tensor; None of None."""
    if value is None:
        return None
    if not isinstance(value, tf.SparseTensor):
        return value[:count]
    size = tf.concat([[count], value.dense_shape[1:]], axis=0)
    return tf.sparse.slice(value, tf.zeros_like(value.dense_shape), size)


def _gather(strategy: tf.distribute.Strategy, value: Any) -> Any:
    first = strategy.experimental_local_results(value)[0]
    if strategy.num_replicas_in_sync == 1:
        return first
    if first.dtype == tf.string:
        lengths = strategy.gather(strategy.run(tf.strings.length, args=(value,)), axis=0)
        width = tf.maximum(tf.reduce_max(lengths), 1)
        codes = strategy.run(to_codes, args=(value, width))
        return from_codes(strategy.gather(codes, axis=0), lengths)
    return from_bits(strategy.gather(strategy.run(to_bits, args=(value,)), axis=0), first.dtype)


def to_codes(texts: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of strings [...] of at most `width` bytes, padded with zeros: int32 [..., width]."""
    return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=width), tf.int32)


def from_codes(codes: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Inverts `to_codes` of strings of `lengths` bytes."""
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
    return tf.strings.substr(tf.strings.reduce_join(letters, axis=-1), tf.zeros_like(lengths), lengths)
