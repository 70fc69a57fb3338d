"""Gathers values of any dtype from all replicas, for predictions."""

from typing import Any

import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas
from tfdist.cluster.devices.bits import from_bits, to_bits


def gather(cluster: Cluster, values: Any) -> Any:
    """Concatenates nested values [n, ...] of all replicas, in replica order; `n` may differ. Collective.

    Args:
        values: dense, ragged or sparse tensors of any dtype but float8; on one replica, anything. None stays None.
    """
    return tf.nest.map_structure(lambda value: _gather(cluster.strategy, value), values)


def of_first_replica(cluster: Cluster, values: Any) -> Any:
    """Returns the nested values of this worker's first replica, from a result of `strategy.run`."""
    return tf.nest.map_structure(lambda value: cluster.strategy.experimental_local_results(value)[0], values)


def first_rows(value: Any, count: tf.Tensor) -> Any:
    """Returns the first `count` (int64 []) rows of a dense, ragged or sparse tensor; None for None."""
    if value is None:
        return None
    if not isinstance(value, tf.SparseTensor):
        return value[:count]
    size = tf.concat([[count], value.dense_shape[1:]], axis=0)
    return tf.sparse.slice(value, tf.zeros_like(value.dense_shape), size)


def _gather(strategy: tf.distribute.Strategy, value: Any) -> Any:
    first = strategy.experimental_local_results(value)[0]
    if strategy.num_replicas_in_sync == 1 or value is None:
        return first
    if isinstance(first, tf.RaggedTensor):
        return _gather_ragged(strategy, value)
    if isinstance(first, tf.SparseTensor):
        return _gather_sparse(strategy, value)
    if first.dtype == tf.string:
        lengths = strategy.gather(strategy.run(tf.strings.length, args=(value,)), axis=0)
        width = tf.maximum(tf.reduce_max(lengths), 1)
        codes = strategy.run(to_codes, args=(value, width))
        return from_codes(strategy.gather(codes, axis=0), lengths)
    return from_bits(strategy.gather(strategy.run(to_bits, args=(value,)), axis=0), first.dtype)


def _gather_ragged(strategy: tf.distribute.Strategy, value: Any) -> tf.RaggedTensor:
    def parts(ragged: tf.RaggedTensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return ragged.flat_values, ragged.nested_row_lengths()

    values, lengths = tf.nest.map_structure(lambda part: _gather(strategy, part), strategy.run(parts, args=(value,)))
    return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)


def _gather_sparse(strategy: tf.distribute.Strategy, value: Any) -> tf.SparseTensor:
    shapes = strategy.gather(strategy.run(lambda sparse: sparse.dense_shape[None], args=(value,)), axis=0)
    first_rows = tf.cumsum(shapes[:, 0], exclusive=True)

    def parts(sparse: tf.SparseTensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = first_rows[replicas.replica_id()]
        return sparse.indices + tf.one_hot(0, sparse.dense_shape.shape[0], row, tf.zeros_like(row)), sparse.values

    indices, values = (_gather(strategy, part) for part in strategy.run(parts, args=(value,)))
    shape = tf.concat([tf.reduce_sum(shapes[:, :1], axis=0), tf.reduce_max(shapes[:, 1:], axis=0)], axis=0)
    return tf.SparseTensor(indices, values, shape)


def to_codes(texts: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of strings [...] of at most `width` bytes, padded with zeros: int32 [..., width]."""
    return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=width), tf.int32)


def from_codes(codes: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Inverts `to_codes` of strings of `lengths` bytes."""
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
    return tf.strings.substr(tf.strings.reduce_join(letters, axis=-1), tf.zeros_like(lengths), lengths)
