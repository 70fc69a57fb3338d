"""Broadcasts bytes and variables of the chief, as sums to which the others add zeros: every strategy supports sums.

Variables start with the chief's values. All variables of a scope are compared together at its end; with equal seeds,
only their hashes are sent. TensorFlow broadcasts each initial value separately: 449 broadcasts for ResNet50V2 with
momentum, which take more than half of the time to build the model on two workers.
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

from tfdist.cluster.devices import bits, replicas

# Maximum bytes of one broadcast; longer contents are broadcast in parts.
_BYTES = 2**25


def bytes_of_chief(
    value: bytes, size: int, is_chief: bool, broadcast: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> bytes:
    """Returns the chief's `value`, of `size` bytes, on every worker, in parts of at most 32 MiB. Collective."""
    parts = []
    for first in range(0, size, _BYTES):
        last = min(first + _BYTES, size)
        words = np.zeros(-(-(last - first) // 4), np.int32)  # Integers: a sum with zeros keeps every bit.
        if is_chief:
            words.view(np.uint8)[: last - first] = np.frombuffer(value, np.uint8)[first:last]
        (from_chief,) = broadcast([tf.constant(words)])
        parts.append(from_chief.numpy().tobytes()[: last - first])
    return b"".join(parts)


def assign(
    variables: Iterable[keras.Variable | tf.Variable], values_of_chief: Callable[[list[tf.Tensor]], list[tf.Tensor]]
) -> None:
    """Sets all variables except strings to the chief's values on every worker. Collective."""
    values = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    values = [variable for variable in values if tf.as_dtype(variable.dtype) != tf.string]
    if values:
        from_chief = values_of_chief([bits.to_bits(tf.convert_to_tensor(variable)) for variable in values])
        for variable, value in zip(values, from_chief, strict=True):
            variable.assign(bits.from_bits(value, variable.dtype))


def values_of_chief(strategy: tf.distribute.Strategy) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    """Compiles a collective that returns the values of the first replica on all workers; their dtypes: see bits.py."""

    @tf.function(autograph=False, reduce_retracing=True)
    def broadcast(values: list[tf.Tensor]) -> list[tf.Tensor]:
        chosen = strategy.run(
            lambda: [tf.where(replicas.replica_id() == 0, value, tf.zeros_like(value)) for value in values]
        )
        return [strategy.reduce("SUM", value, axis=None) for value in chosen]

    return broadcast


# The name of an argument of variable creators: it passes on this worker's initial value.
_OWN = "tfdist_own_value"


# Whether this thread is in a scope: variable creators also belong to a thread.
_block = threading.local()


@contextlib.contextmanager
def scope(strategy: tf.distribute.Strategy, equalise: Callable[[list[tf.Variable]], None]) -> Iterator[None]:
    """The scope of the strategy of several workers, without its broadcasts; see `Cluster.scope`.

    At the end of the outermost block, unless it raised an error, `equalise` is called with the variables that were
    created in the block, to give them the chief's values.
    """
    if getattr(_block, "is_open", False):
        with strategy.scope():
            yield
        return
    created: list[tf.Variable] = []

    def create(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        """Creates a mirrored variable."""
        value = keywords["initial_value"]
        if not tf.executing_eagerly():  # While a graph is traced, the value is unknown: TensorFlow broadcasts it.
            return next_creator(**keywords)
        initial = functools.cache(value) if callable(value) else value  # Drawn once for all devices.
        created.append(next_creator(**keywords | {"initial_value": initial, _OWN: initial}))
        return created[-1]

    _block.is_open = True
    try:
        with tf.variable_creator_scope(_create_on_device), strategy.scope(), tf.variable_creator_scope(create):
            yield
    finally:
        _block.is_open = False
    if created:
        equalise(created)


def _create_on_device(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
    """Makes a device's variable with this worker's initial value; the strategy's own value would be broadcast."""
    initial = keywords.pop(_OWN, None)
    return next_creator(**keywords if initial is None else keywords | {"initial_value": initial})


def hash_values(strategy: tf.distribute.Strategy, variables: Sequence[tf.Variable]) -> list[int]:
    """Returns a hash of the bits of each variable on this worker's first device: signed 64-bit integers."""
    hashes = []
    for variable in variables:
        value = np.ascontiguousarray(strategy.experimental_local_results(variable)[0].numpy())
        digest = hashlib.blake2b(value.reshape(-1).view(np.uint8), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "little", signed=True))
    return hashes
