"""Keras' seed generators, of dropout for example, as functions of (generator, step, replica).

Keras' generators advance a counter that all replicas share. Every replica of every worker would draw the same mask, and
a resumed run would have to restore the counters. Stateless seeds differ between replicas and need no saving.
"""

import threading
from collections.abc import Callable

import keras
import tensorflow as tf

# The replicas of a process are traced in threads of their own, in turns: each thread counts its own calls.
_trace = threading.local()


def begin_forward_pass(micro_batch: tf.Tensor | int) -> None:
    """Resets the calls of all generators at the start of one replica's forward pass.

    Args:
        micro_batch: index of the micro-batch, int32 [].
    """
    _trace.calls = {}
    _trace.micro_batch = micro_batch


def make_stateless(model: keras.Model, step: keras.Variable, replica_id: Callable[[], tf.Tensor]) -> None:
    """Makes the seeds of all generators in `model` functions of (own seed, call, step, micro-batch, replica).

    Args:
        model: a built model.
        step: the optimizer's step count, int64 [].
        replica_id: returns the calling replica's index, int32 [].
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            _make_stateless(generator, step, replica_id)


def _make_stateless(generator: keras.random.SeedGenerator, step: keras.Variable, replica_id: Callable) -> None:
    own_seed = keras.ops.convert_to_numpy(generator.state)

    def next_seed(ordered: bool = True) -> tf.Tensor:
        del ordered
        if not hasattr(_trace, "calls"):
            begin_forward_pass(0)
        call = _trace.calls.get(id(generator), 0)
        _trace.calls[id(generator)] = call + 1
        seed = tf.constant(own_seed, tf.int64)
        for part in (call, step.value, _trace.micro_batch, replica_id()):
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(part, tf.int64))
        return seed

    generator.next = next_seed
