"""Seed generators, for example of Keras' dropout, as functions of (own seed, call, step, micro-batch, replica).

Keras' generators advance a counter that all replicas share. Every replica of every worker would draw the same mask, and
a resumed run would have to restore the counters. Stateless seeds differ between replicas and need no saving.

The seeds are computed on the host, because TensorFlow's random ops read them from host memory: on a GPU, the host would
wait for a copy of each. So the loop counts the steps, instead of reading the count from the device, and the computation
is one function that reads only int32 numbers, which TensorFlow keeps in host memory even with a GPU.
tests/unit/training/test_gpu_audit.py checks that no step waits.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.layers import model_layers

# Each replica of a process is traced in its own thread, in turn: each thread counts its own calls.
# Besides what is set here, it may have `replica`; see repeated_passes.py.
this_pass = threading.local()
# While the body of a loop is traced: the step count before the loop, the optimizer steps made in it, and the index of
# the batch. All replicas' threads read it.
_loop: list[tuple[tf.Tensor, tf.Tensor, Callable[[], tf.Tensor]]] = []
# Stands for the micro-batch in an evaluation.
_EVALUATION = object()


class _Unseeded:
    """Seeds of random ops without a generator: of `keras.random` without a seed, and of TensorFlow's stateful ops."""

    next: Callable[[], tf.Tensor]

    def __init__(self, seed: int):
        self.state = np.array([seed, 1])  # Generators of Keras begin with (seed, 0).


# Empty except during a run.
_unseeded: list[_Unseeded] = []


def begin_forward_pass(micro_batch: tf.Tensor | int | object) -> None:
    """Resets the call counts of all generators at the start of one replica's forward pass.

    Args:
        micro_batch: index of the micro-batch, int32 [].
    """
    this_pass.graph = tf.compat.v1.get_default_graph()
    this_pass.calls = {}
    this_pass.micro_batch = micro_batch


def begin_evaluation_pass() -> None:
    """As `begin_forward_pass`, for an evaluation: each batch has its own negative micro-batch index."""
    begin_forward_pass(_EVALUATION)


def step_as_int32_pair(step: keras.Variable) -> tf.Tensor:
    """Returns the step count as int32 [2], in host memory; called before the loop, in `run_steps`."""
    with tf.device("CPU:0"):
        words = tf.bitcast(step.value, tf.int32)
    return tf.identity(words)  # On the device of the loop, where TensorFlow has int32 numbers in host memory.


@contextlib.contextmanager
def use_count_of_loop(words: tf.Tensor, done: tf.Tensor, batch: Callable[[], tf.Tensor]) -> Iterator[None]:
    """While the body of a loop is traced, seeds use the loop's count instead of reading the step from the device.

    Args:
        words: the result of `step_as_int32_pair` before the loop.
        done: optimizer steps that the loop has made, int32 [].
        batch: returns the index of the batch, int32 [], since the start of an evaluation.
    """
    _loop.append((words, done, batch))
    try:
        yield
    finally:
        _loop.pop()


def make_stateless(model: keras.Model, step: keras.Variable, replica_id: Callable[[], tf.Tensor], seed: int) -> None:
    """Makes the seeds of all generators functions of (own seed, call, step, micro-batch, replica).

    These are the generators of `model`, and one for random ops without a generator; see `unseeded_generator`.

    Args:
        step: the optimizer's step count, int64 [].
        replica_id: returns the calling replica's index, int32 [].
        seed: of the run; the own seed of random ops without a generator.
    """
    # Not inlined: the constants of its body would become host ops in the loop, which wait for the device.
    compute_seed = tf.function(_seed, autograph=False, experimental_attributes={"_noinline": True})
    _unseeded[:] = [_Unseeded(seed)]
    for generator in (*_generators(model), *_unseeded):
        _make_stateless(generator, step, replica_id, compute_seed)


@contextlib.contextmanager
def advance_in_block(model: keras.Model) -> Iterator[None]:
    """In the block, until `make_stateless` is called, each generator advances its own state; then all is as before.

    Blocks may be nested, as when a callback evaluates the model that is trained.
    """
    before = {id(generator): vars(generator).pop("next", None) for generator in _generators(model)}
    unseeded, _unseeded[:] = [*_unseeded], []
    try:
        yield
    finally:
        _unseeded[:] = unseeded
        for generator in _generators(model):
            vars(generator).pop("next", None)
            if before.get(id(generator)) is not None:
                vars(generator)["next"] = before[id(generator)]


def unseeded_generator(*, in_loops: bool) -> _Unseeded | None:
    """Returns the generator for random ops without one; None if this thread traces no forward pass.

    Args:
        in_loops: whether to return it also in the user's loops, branches and `tf.function`s in the forward pass.
    """
    in_own_graph = getattr(this_pass, "graph", None) is tf.compat.v1.get_default_graph()
    if not is_in_pass() or (tf.executing_eagerly() and not in_own_graph):
        return None
    return _unseeded[0] if in_loops or in_own_graph else None


def is_in_pass() -> bool:
    """Returns whether, during a run, this thread traces a forward pass or has traced one before."""
    return bool(_unseeded) and getattr(this_pass, "graph", None) is not None


def _generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns the generators of layers, and those in attributes of losses and metrics, which Keras does not track."""
    layers = model_layers.all_layers(model)
    attributes = [value for layer in layers for value in vars(layer).values()]
    parts = [*keras.tree.flatten(getattr(model, "loss", None)), *model.metrics, *attributes]
    parts = [part for part in parts if isinstance(part, keras.Loss | keras.Metric)]
    parts += [metric for part in parts for metric in getattr(part, "metrics", ())]
    own = [value for part in parts for value in vars(part).values() if isinstance(value, keras.random.SeedGenerator)]
    generators = [*(generator for layer in layers for generator in layer._seed_generators), *own]
    return list({id(generator): generator for generator in generators}.values())


def _make_stateless(
    generator: keras.random.SeedGenerator, step: keras.Variable, replica_id: Callable, compute_seed: Callable
) -> None:
    own_seed = keras.ops.convert_to_numpy(generator.state).astype(np.int64).view(np.int32)

    def next_seed(ordered: bool = True) -> tf.Tensor:
        if not hasattr(this_pass, "calls"):
            begin_forward_pass(0)
        call = this_pass.calls.get(id(generator), 0)
        this_pass.calls[id(generator)] = call + 1
        words, done, batch = _loop[-1] if _loop else (step_as_int32_pair(step), 0, lambda: 0)
        done = tf.convert_to_tensor(done)
        # Computed only here, so that a graph without random numbers does not compute it in each step.
        micro_batch = -1 - batch() if this_pass.micro_batch is _EVALUATION else this_pass.micro_batch
        micro_batch = tf.convert_to_tensor(micro_batch)
        replica = getattr(this_pass, "replica", None)
        replica = replica_id() if replica is None else replica
        arguments = (tf.constant(own_seed), tf.constant(call), words, done, micro_batch, replica)
        with tf.device("CPU:0"):
            return compute_seed(*arguments)

    patching.replace_attribute(generator, "next", next_seed)


def _seed(
    own_seed: tf.Tensor, call: tf.Tensor, words: tf.Tensor, done: tf.Tensor, micro_batch: tf.Tensor, replica: tf.Tensor
) -> tf.Tensor:
    """Returns a seed, int32 [2], for int32 arguments: [4], [], [2], [], [], []; pairs of words are int64 numbers."""
    step = tf.bitcast(words, tf.int64) + tf.cast(done, tf.int64)
    seed = tf.bitcast(tf.reshape(own_seed, [2, 2]), tf.int64)
    for part in (call, step, micro_batch, replica):
        seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(part, tf.int64))
    # Keras' random functions convert int64 seeds in the same way, but on the device.
    return tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)
