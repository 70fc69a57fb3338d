"""What a run replaces in the model, in Keras and in TensorFlow, and restores at its end; what a process replaces.

Every replacement for a user's step does what the original does, except in a thread that traces such a step.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.config.patching import patch, put, set_in_block, undo_puts
from tfdist.data import autograph
from tfdist.keras_fit.own_step import replica_step
from tfdist.keras_fit.own_step.replica_step import ReplicaStep
from tfdist.keras_fit.whole_batch import coupling, reductions, shard_layers, shard_losses
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.training import api as trainer


def patch_process() -> None:
    """Replaces, for all that this process does, what models need while they are made."""
    trainer.take_over_remat_scopes()
    put(tf, "custom_gradient", functools.partial(_custom_gradient, tf.custom_gradient))


@contextlib.contextmanager
def patch_keras() -> Iterator[None]:
    """Patches optimizers, metrics, variables and gradient tapes."""
    in_step = functools.partial(functools.partial, replica_step.call_in_step)
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (keras.optimizers.Optimizer, "apply", in_step(_apply)),
            (keras.optimizers.LossScaleOptimizer, "apply", in_step(_apply)),
            (keras.metrics.Mean, "update_state", _update_by_number),
            (keras.metrics.Sum, "update_state", _update_by_number),
            (keras.Variable, "assign", in_step(ReplicaStep.assign)),
            (type(tf.function(keras.Model)), "__call__", in_step(_call_function)),
            (tf.GradientTape, "watch", in_step(_watch)),
            (tf.GradientTape, "gradient", in_step(_gradient)),
            (tf.GradientTape, "jacobian", in_step(_jacobian)),
            (tf.GradientTape, "batch_jacobian", in_step(_mapped_backward)),
            (tf, "vectorized_map", in_step(_mapped)),
            (tf, "gradients", in_step(_gradients)),
            (tf.compat.v1, "gradients", in_step(_gradients)),
            (tf, "hessians", in_step(_hessians)),
            (tf.autodiff.ForwardAccumulator, "__init__", in_step(_accumulate)),
            (tf.autodiff.ForwardAccumulator, "jvp", in_step(_jvp)),
            (trainer.ReplicaContext, "all_reduce", in_step(ReplicaStep.add_up)),
            (tf.GradientTape, "__enter__", in_step(_enter)),
            (tf.GradientTape, "__exit__", in_step(_exit)),
        ):
            stack.enter_context(patch(owner, name, replacement))
        yield


@contextlib.contextmanager
def expect_sums(optimizers: list[keras.optimizers.Optimizer], cluster: Cluster) -> Iterator[None]:
    """Makes optimizers take gradients that are summed over replicas, and use fused kernels; restores their methods."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            stack.enter_context(trainer.restore_methods(inner))
            trainer.prepare_optimizer(inner, cluster)
            stack.enter_context(trainer.take_branches_once(inner))
        yield


@contextlib.contextmanager
def patch_for_run(model: keras.Model) -> Iterator[contextlib.ExitStack]:
    """Patches Keras for a run, and restores everything at the end; the stack is for what the run finds out."""
    with (
        trainer.restore_methods(getattr(model.optimizer, "inner_optimizer", model.optimizer)),
        undo_puts(),
        contextlib.ExitStack() as undo,
        shard_losses.patch_losses(model),
        shard_layers.losses_of_each_replica(trainer.layers_of_all_depths(model)),
        patch_keras(),
        contextlib.ExitStack() as stack,
    ):
        undo.callback(trainer.restore_seed_generators, model)
        yield stack


def _apply(step: ReplicaStep, original: Callable, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    return step.apply_gradients(optimizer, functools.partial(original, optimizer), list(grads), trainable_variables)


def _update_by_number(original: Callable, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Gives a scalar the weight of the shard: the scalars of all replicas count like one of the global batch."""
    rows = rows_lib.rows_now()
    if rows is None:
        return original(metric, values, sample_weight)
    # A keras.Variable is a tensor for Keras, and has no operation.
    values = tf.convert_to_tensor(keras.ops.convert_to_tensor(values))
    weight = None if sample_weight is None else tf.convert_to_tensor(keras.ops.convert_to_tensor(sample_weight))
    if len(values.shape) > 0 or (weight is not None and len(weight.shape) > 0):
        return original(metric, values, sample_weight)
    fraction = rows.weight
    if tf.executing_eagerly():  # Whether a number is a sum is not known: nearly all are means.
        return original(metric, values, fraction if weight is None else weight)
    if weight is None:
        coupling.warn_of_metric(metric.name, values, rows)
    if _counts_examples(values, rows):
        values = tf.math.divide_no_nan(tf.cast(values, fraction.dtype), fraction)
    else:
        values = reductions.share_value(values, rows)
    if weight is None:
        weight = fraction
    elif not _counts_examples(weight, rows) and reductions.kind_of(weight, rows) != "sum":
        weight = tf.cast(weight, fraction.dtype) * fraction
    return original(metric, values, weight)


def _counts_examples(value: tf.Tensor, rows: rows_lib.Rows) -> bool:
    """Returns whether a number is that of the replica's examples, or of their values."""
    if reductions.depends_on_data(value.op, rows):
        return False
    is_static = rows.static not in (None, 1) and tf.get_static_value(value) == rows.static
    return is_static or reductions.is_of_a_shape(value) or reductions.depends_on_data(value.op, rows, by_shape=True)


def _watch(step: ReplicaStep, original: Callable, tape: Any, tensor: Any) -> None:
    """Watches no variables while a step is traced without effect: they have no handle outside of a replica."""
    watched = [one for one in tf.nest.flatten(tensor) if not (step.without_effect and isinstance(one, tf.Variable))]
    original(tape, watched)


def _gradients(
    step: ReplicaStep, original: Callable, ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **options: Any
) -> list[Any]:
    """As the gradient of a tape, for `tf.gradients`."""
    xs = list(xs) if isinstance(xs, list | tuple) else [xs]
    gradient = lambda _, *given, **named: original(*given, **named)  # noqa: E731
    return _gradient(step, gradient, None, ys, xs, grad_ys, *args, **options)


def _hessians(step: ReplicaStep, original: Callable, *args: Any, **options: Any) -> list[Any]:
    step.refuse_on_several("tf.hessians")
    return original(*args, **options)


def _accumulate(step: ReplicaStep, original: Callable, accumulator: Any, primals: Any, tangents: Any) -> None:
    """Watches nothing while a step is traced without effect: variables have no handle outside of a replica."""
    step.refuse_on_several("tf.autodiff.ForwardAccumulator")
    original(accumulator, *(([], []) if step.without_effect else (primals, tangents)))


def _jvp(step: ReplicaStep, original: Callable, accumulator: Any, primals: Any, *args: Any, **options: Any) -> Any:
    if step.without_effect:
        return tf.nest.map_structure(replica_step.zeros, primals)
    return original(accumulator, primals, *args, **options)


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
    if step.in_backward or not flat:
        return original(tape, target, sources, output_gradients, *args, **options)
    if step.without_effect:
        return _without_effect(functools.partial(original, tape, target), sources, output_gradients)
    unclear = False
    if step.rows.replicas > 1:
        targets = [tf.convert_to_tensor(one) for one in tf.nest.flatten(target)]
        given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
        if any(isinstance(one, keras.Variable | tf.Variable) for one in flat):
            coupling.warn_of_step(targets, step.rows)
        pairs = zip(targets, given, strict=True)
        parts = [(sign, term, of) for one, of in pairs for sign, term in reductions.terms_of(one, step.rows)]
        target = [term for _, term, _ in parts]
        unclear = any(reductions.kind_of(term, step.rows) == "other" for term in target)
        output_gradients = [
            sign * step.upstream(term) * (1 if of is None else tf.cast(of, term.dtype)) for sign, term, of in parts
        ]
    found = _in_backward(step, original, tape, target, sources, output_gradients, *args, **options)
    return step.complete_gradients(found, sources, unclear, of_graph=tape is None)


def _without_effect(gradient: Callable, sources: Any, output_gradients: Any) -> Any:
    """Returns zeros as the gradients of variables, and of what a number is not connected to, which is made of zeros.

    Computes those of inputs, which may be part of a loss. Those of tables, in which examples look up rows, have rows.
    """
    flat = tf.nest.flatten(sources)
    inputs = [one for one in flat if not isinstance(one, keras.Variable | tf.Variable)]
    found = {id(one): of for one, of in zip(inputs, gradient(inputs, output_gradients) if inputs else [], strict=True)}
    found = [replica_step.zeros(one) if found.get(id(one)) is None else found[id(one)] for one in flat]
    return tf.nest.pack_sequence_as(sources, found)


def _jacobian(
    step: ReplicaStep, original: Callable, tape: Any, target: Any, sources: Any, *args: Any, **options: Any
) -> Any:
    """Returns the Jacobian of a number as its gradient, and that of values per example of those of the replica."""
    target = tf.convert_to_tensor(target)
    if target.shape.rank == 0:
        return tape.gradient(target, sources)
    is_variable = [isinstance(one, keras.Variable | tf.Variable) for one in tf.nest.flatten(sources)]
    if step.without_effect and all(is_variable):
        shape = tf.shape(target)
        return tf.nest.map_structure(lambda one: tf.zeros(tf.concat([shape, one.shape], 0), one.dtype), sources)
    step.by_jacobian = step.by_jacobian or any(is_variable)
    return _mapped_backward(step, original, tape, target, sources, *args, **options)


def _custom_gradient(original: Callable, f: Callable | None = None) -> Any:
    """What a function computes for its own gradient are gradients of the replica: the outer tape's are completed."""
    if f is None:
        return functools.partial(_custom_gradient, original)

    @functools.wraps(f)
    def call(*args: Any, **keywords: Any) -> Any:
        return replica_step.call_in_step(_in_backward, f, *args, **keywords)

    return original(call)


def _call_function(step: ReplicaStep, original: Callable, function: Any, *args: Any, **keywords: Any) -> Any:
    """Calls a user's function of `tf.function` as a part of the step: in a graph of its own, replicas cannot meet.

    Not one that XLA compiles.
    """
    plain = inspect.unwrap(function.python_function)
    if step.in_branch or function.function_spec.jit_compile or not user_code.defines(plain):
        return original(function, *args, **keywords)
    return autograph.convert(function.python_function, plain.__qualname__)(*args, **keywords)


def _marking(**fields: bool) -> Callable[..., Any]:
    """Returns a replacement that calls the original while these fields of the step are set."""

    def call(step: ReplicaStep, original: Callable, *args: Any, **options: Any) -> Any:
        with set_in_block(step, **fields):
            return original(*args, **options)

    return call


_in_backward = _marking(in_backward=True)
# As in a loop: replicas cannot meet for each example. A Jacobian is a vectorized map of gradients.
_mapped, _mapped_backward = _marking(mapping=True), _marking(mapping=True, in_backward=True)


def _enter(step: ReplicaStep, original: Callable, tape: Any) -> Any:
    step.recording.append(tape)
    return original(tape)


def _exit(step: ReplicaStep, original: Callable, tape: Any, *error: Any) -> Any:
    step.recording[:] = [one for one in step.recording if one is not tape]
    return original(tape, *error)
