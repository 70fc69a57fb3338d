"""Sends the chief's bytes and values of variables to all workers, as sums with zeros: they exist on every topology."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import collective_dtypes, replicas

# Bytes of one broadcast: longer contents are broadcast in parts.
_BYTES = 2**25


def broadcast_bytes(cluster: Cluster, value: bytes) -> bytes:
    """See `Cluster.broadcast_bytes`."""
    size = cluster.broadcast(len(value))
    return b"".join(_part(cluster, value, first, min(first + _BYTES, size)) for first in range(0, size, _BYTES))


def _part(cluster: Cluster, value: bytes, first: int, last: int) -> bytes:
    words = np.zeros(-(-(last - first) // 4), np.int32)  # Integers: a sum with zeros keeps every bit.
    if cluster.is_chief:
        words.view(np.uint8)[: last - first] = np.frombuffer(value, np.uint8)[first:last]
    key = ("broadcast", tf.int32)  # Collectives do not support uint8.
    if key not in cluster.compiled:
        cluster.compiled[key] = _make(cluster, [[tf.TensorSpec([None], tf.int32)]])
    (from_chief,) = cluster.compiled[key]([tf.constant(words)])
    return from_chief.numpy().tobytes()[: last - first]


def make_broadcast_variables(cluster: Cluster, variables: Iterable[Any]) -> Callable[[], None]:
    """See `Cluster.make_broadcast_variables`."""
    values = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    values = [variable for variable in values if tf.as_dtype(variable.dtype) != tf.string]
    if not values:
        return lambda: None
    broadcast = _make(cluster)

    def broadcast_values() -> None:
        cluster_lib.check("a broadcast of variables")
        from_chief = broadcast([collective_dtypes.to_bits(tf.convert_to_tensor(variable)) for variable in values])
        for variable, bits in zip(values, from_chief, strict=True):
            variable.assign(collective_dtypes.from_bits(bits, variable.dtype))

    return broadcast_values


def _make(cluster: Cluster, input_signature: Any = None) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    @tf.function(autograph=False, input_signature=input_signature)
    def broadcast(values: list[tf.Tensor]) -> list[tf.Tensor]:
        chosen = cluster.strategy.run(
            lambda: [tf.where(replicas.replica_id() == 0, value, tf.zeros_like(value)) for value in values]
        )
        return [cluster.strategy.reduce("SUM", value, axis=None) for value in chosen]

    def broadcast_to_all(values: list[tf.Tensor]) -> list[tf.Tensor]:
        with cluster.collective("a broadcast"):
            return broadcast(values)

    return broadcast_to_all
