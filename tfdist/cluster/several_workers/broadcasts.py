"""Gives all workers the chief's bytes and values of variables, as sums with zeros: these exist on every topology.

Variables begin with the chief's values: those of a block are compared at once, at its end. TensorFlow broadcasts the
initial value of each variable by itself: 449 times for ResNet50V2 with momentum, more than half of the time in which
its model is made on two workers. With equal seeds the values are equal, and only hashes are sent.
"""

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather, replicas

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
        from_chief = broadcast([gather.to_bits(tf.convert_to_tensor(variable)) for variable in values])
        for variable, bits in zip(values, from_chief, strict=True):
            variable.assign(gather.from_bits(bits, variable.dtype))

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


# The argument of variable creators that has the value of this worker.
_OWN = "tfdist_own_value"


class _Block(threading.local):
    """Whether this thread is in a block; creators of variables belong to a thread, too."""

    is_open: bool = False


_block = _Block()


@contextlib.contextmanager
def scope(cluster: Cluster) -> Iterator[None]:
    """The scope of the strategy of several workers, without its broadcasts; see `Cluster.scope`.

    At the end of the outermost block the variables that were made in it get the chief's values, but not after an error.
    """
    if _block.is_open:
        with cluster.strategy.scope():
            yield
        return
    created: list[tf.Variable] = []

    def create(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        """Called for a variable of all devices."""
        value = keywords["initial_value"]
        if not tf.executing_eagerly():  # In a graph that is traced the value is not known: TensorFlow broadcasts it.
            return next_creator(**keywords)
        initial = functools.cache(value) if callable(value) else value  # Drawn once for all devices.
        created.append(next_creator(**keywords | {"initial_value": initial, _OWN: initial}))
        return created[-1]

    _block.is_open = True
    try:
        with tf.variable_creator_scope(_create_on_device), cluster.strategy.scope(), tf.variable_creator_scope(create):
            yield
    finally:
        _block.is_open = False
    if created:
        _equalise(cluster, created)


def _create_on_device(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
    """Called by the strategy for the variable of each device, with an initial value that it would broadcast."""
    initial = keywords.pop(_OWN, None)
    return next_creator(**keywords if initial is None else keywords | {"initial_value": initial})


def _equalise(cluster: Cluster, variables: list[tf.Variable]) -> None:
    """Sets new variables to the chief's values where a worker has others. Collective.

    Raises:
        ValueError: the workers have created different numbers of variables.
    """
    variables = [variable for variable in variables if tf.as_dtype(variable.dtype) != tf.string]
    counts = cluster.all_gather([len(variables)])[:, 0].tolist()
    if len({*counts}) > 1:
        raise ValueError(
            "The workers have created different numbers of variables in cluster.scope(), by rank: "
            f"{', '.join(map(str, counts))}. Build the same model on all."
        )
    if variables:
        found = cluster.all_gather(_hash_values(cluster.strategy, variables))
        differs = (found != found[0]).any(axis=0)
        cluster.broadcast_variables(variable for variable, other in zip(variables, differs, strict=True) if other)


def _hash_values(strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]) -> list[int]:
    """Returns a hash of the bits of each variable on this worker's first device: 64 bits with a sign."""
    hashes = []
    for variable in variables:
        value = np.ascontiguousarray(strategy.experimental_local_results(variable)[0].numpy())
        digest = hashlib.blake2b(value.reshape(-1).view(np.uint8), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "little", signed=True))
    return hashes
