"""What a run replaces in the model, in Keras and in TensorFlow, and restores at its end.

Every replacement for a user's step does what the original does, except in a thread that traces such a step.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import replaced, restored
from tfdist.keras_fit import optimizer_branches
from tfdist.keras_fit.own_step import explain, replica_step
from tfdist.keras_fit.own_step.replica_step import ReplicaStep
from tfdist.keras_fit.whole_batch import shard_losses
from tfdist.training import api as trainer


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Patches optimizers, metrics, variables and gradient tapes."""
    with contextlib.ExitStack() as stack:
        for owner, name, method in (
            (keras.optimizers.Optimizer, "apply", _apply),
            (keras.optimizers.LossScaleOptimizer, "apply", _apply),
            (keras.metrics.Mean, "update_state", _update_mean),
            (keras.Variable, "assign", _assign),
            (tf.GradientTape, "gradient", _gradient),
            (tf.GradientTape, "__enter__", _enter),
            (tf.GradientTape, "__exit__", _exit),
        ):
            stack.enter_context(replaced(owner, name, functools.partial(replica_step.call_in_step, method)))
        yield


@contextlib.contextmanager
def sums_expected(optimizers: list[keras.optimizers.Optimizer], cluster: Cluster) -> Iterator[None]:
    """Makes optimizers take gradients that are summed over replicas, and use fused kernels; restores their methods."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            stack.enter_context(trainer.methods_restored(inner))
            trainer.prepare_optimizer(inner, cluster)
            stack.enter_context(optimizer_branches.taken_once(inner))
        yield


@contextlib.contextmanager
def patched_for_run(model: keras.Model) -> Iterator[contextlib.ExitStack]:
    """Patches Keras for a run, and restores everything at the end; the stack is for what the run finds out."""
    with (
        trainer.methods_restored(getattr(model.optimizer, "inner_optimizer", model.optimizer)),
        restored(trainer.synchronized_layers(model), ["call"]),
        contextlib.ExitStack() as undo,
        shard_losses.patched_losses(model),
        patched(),
        contextlib.ExitStack() as stack,
    ):
        undo.callback(trainer.restore_seed_generators, model)
        yield stack


def _apply(step: ReplicaStep, original: Callable, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    return step.apply_gradients(optimizer, functools.partial(original, optimizer), list(grads), trainable_variables)


def _update_mean(step: ReplicaStep, original: Callable, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Gives a scalar the weight of the shard: the scalars of all replicas count like one of the global batch."""
    values = keras.ops.convert_to_tensor(values)
    if sample_weight is None and len(values.shape) == 0:
        sample_weight = step.rows.weight
    return original(metric, values, sample_weight)


def _assign(step: ReplicaStep, original: Callable, variable: keras.Variable, value: Any) -> Any:
    step.note_assignment(variable)
    return original(variable, value)


def _gradient(
    step: ReplicaStep,
    original: Callable,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    """Returns the gradients of variables for the global batch, as on one device; others are those of the shard."""
    flat = tf.nest.flatten(sources)
    if not any(isinstance(source, keras.Variable | tf.Variable) for source in flat):
        return original(tape, target, sources, output_gradients, *args, **options)
    if step.without_effect:
        return tf.nest.map_structure(lambda source: tf.zeros(source.shape, source.dtype), sources)
    if output_gradients is None and step.rows.replicas > 1:
        targets = [tf.convert_to_tensor(one) for one in tf.nest.flatten(target)]
        explain.tell_reductions(targets, step.rows.losses)
        output_gradients = [step.upstream(one) for one in targets]
    found = original(tape, target, sources, output_gradients, *args, **options)
    return step.average_gradients(tape, found, sources)


def _enter(step: ReplicaStep, original: Callable, tape: Any) -> Any:
    step.recording.append(tape)
    return original(tape)


def _exit(step: ReplicaStep, original: Callable, tape: Any, *error: Any) -> Any:
    step.recording[:] = [one for one in step.recording if one is not tape]
    return original(tape, *error)
