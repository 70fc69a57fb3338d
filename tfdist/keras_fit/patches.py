"""What a run replaces in the model, in Keras and in TensorFlow, and restores at its end.

Every replacement for a user's step does what the original does, except in a thread that traces such a step.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import cond as cond_ops

from tfdist.config import user_code
from tfdist.config.patching import patch, restore_attributes, set_in_block
from tfdist.data import autograph
from tfdist.keras_fit.whole_batch import global_view, one_replica, own_rows
from tfdist.keras_fit.whole_batch.global_view import GlobalView
from tfdist.training import api as trainer


@contextlib.contextmanager
def patch_keras() -> Iterator[None]:
    """Patches layers, optimizers and gradient tapes: they follow the global view while a step is traced."""
    in_step = functools.partial(functools.partial, global_view.call_in_step)
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (keras.layers.Layer, "__call__", functools.partial(_by_view, "call")),
            (keras.layers.Layer, "add_loss", functools.partial(_by_view, "add_loss")),
            (keras.optimizers.Optimizer, "apply", global_view.apply),
            (keras.optimizers.LossScaleOptimizer, "apply", global_view.apply),
            (keras.Loss, "__call__", in_step(own_rows.call_loss)),
            (keras.Model, "compute_loss", in_step(own_rows.compute_loss)),
            (own_rows.keras_loss, "reduce_weighted_values", own_rows.reduce_loss),
            (own_rows.keras_loss, "scale_loss_for_distribution", own_rows.scale_loss),
            (own_rows.keras_loss, "unscale_loss_for_distribution", own_rows.scale_loss),
            (keras.optimizers.Optimizer, "_all_reduce_sum_gradients", in_step(_return_last)),
            (keras.optimizers.Optimizer, "_overwrite_model_variables_with_average_value", _overwrite),
            (cond_ops, "cond", global_view.cond),
            (type(tf.function(keras.Model)), "__call__", in_step(_call_function)),
            (tf.GradientTape, "watch", in_step(_watch)),
            (tf.GradientTape, "gradient", in_step(_gradient)),
            (tf.GradientTape, "jacobian", in_step(_refuse("tf.GradientTape.jacobian"))),
            (tf.GradientTape, "batch_jacobian", in_step(_refuse("tf.GradientTape.batch_jacobian"))),
            (tf, "vectorized_map", _map),
            (tf, "gradients", in_step(_gradients)),
            (tf.compat.v1, "gradients", in_step(_gradients)),
            (tf, "hessians", in_step(_refuse("tf.hessians"))),
            (tf.autodiff.ForwardAccumulator, "__init__", in_step(_refuse("tf.autodiff.ForwardAccumulator"))),
            (tf.nn, "compute_average_loss", in_step(_average_loss)),
            (tf.nn, "scale_regularization_loss", in_step(_return_last)),
            (tf.GradientTape, "__enter__", in_step(_enter)),
            (tf.GradientTape, "__exit__", in_step(_exit)),
        ):
            stack.enter_context(patch(owner, name, replacement))
        stack.enter_context(one_replica.show_one_replica())
        yield


@contextlib.contextmanager
def patch_for_run(model: keras.Model) -> Iterator[contextlib.ExitStack]:
    """Patches Keras for a run. At its end everything is restored, also what the run adds to the stack."""
    with (
        trainer.restore_methods(getattr(model.optimizer, "inner_optimizer", model.optimizer)),
        restore_attributes(),
        trainer.advance_in_block(model),
        patch_keras(),
        contextlib.ExitStack() as stack,
    ):
        yield stack


def _by_view(method: str, original: Callable, *args: Any, **keywords: Any) -> Any:
    """Calls a method of the view while a step is traced, also in a layer; otherwise the original."""
    view = global_view.of_step()
    return original(*args, **keywords) if view is None else getattr(view, method)(original, *args, **keywords)


def _return_last(view: GlobalView, original: Callable, *args: Any) -> Any:
    """Returns its last argument: gradients and losses are already those of the global batch."""
    return args[-1]


def _overwrite(original: Callable, optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
    """Calls the original, which updates weights, once for all replicas; Keras calls it on each replica, in a branch."""
    trainer.call_once(functools.partial(original, optimizer, variables))


def _average_loss(
    view: GlobalView,
    original: Callable,
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> tf.Tensor:
    """Computes the mean as on one device."""
    losses = tf.convert_to_tensor(per_example_loss)
    if sample_weight is not None:
        losses *= tf.cast(sample_weight, losses.dtype)
    size = tf.shape(losses)[0] if global_batch_size is None else global_batch_size
    return tf.reduce_sum(losses) / tf.cast(size, losses.dtype)


def _watch(view: GlobalView, original: Callable, tape: Any, tensor: Any) -> None:
    """Watches no variables while a step is traced without effect: they have no handle outside of a replica."""
    view.mark(tensor, sources=True)
    original(tape, [one for one in tf.nest.flatten(tensor) if not (view.discovers and isinstance(one, tf.Variable))])


def _gradients(view: GlobalView, original: Callable, ys: Any, xs: Any, *args: Any, **options: Any) -> list[Any]:
    """Replaces `tf.gradients`, as `_gradient` replaces that of a tape; its result may be part of a loss."""
    xs = list(xs) if isinstance(xs, list | tuple) else [xs]
    with set_in_block(view, recording=[*view.recording, None]):
        return _gradient(view, lambda _, *given, **named: original(*given, **named), None, ys, xs, *args, **options)


def _gradient(
    view: GlobalView, original: Callable, tape: Any, target: Any, sources: Any, *args: Any, **options: Any
) -> Any:
    """Returns the gradients for the global batch, as on one device."""
    if not tf.nest.flatten(sources):
        return original(tape, target, sources, *args, **options)
    view.mark([one for one in tf.nest.flatten(target) if not view.is_sum(one)])
    view.mark(sources, sources=True)
    view.num_forward = view.num_operations()
    # Layers that the backward pass calls again, as keras.remat does, are not code of the step.
    with set_in_block(view, in_layer=True):
        if view.discovers:
            return _traced_gradients(functools.partial(original, tape, target), sources, *args)
        found = original(tape, target, sources, *args, **options)
    return view.complete_gradients(found, sources)


def _traced_gradients(gradient: Callable, sources: Any, output_gradients: Any = None, *unused: Any) -> Any:
    """Returns gradients for a trace without effect: zeros for variables, and for inputs without a gradient.

    The gradients of other inputs are computed, because they may be part of a loss.
    """
    flat = tf.nest.flatten(sources)
    inputs = [one for one in flat if not isinstance(one, keras.Variable | tf.Variable)]
    gradients = gradient(inputs, output_gradients) if inputs else []
    found = {id(one): value for one, value in zip(inputs, gradients, strict=True)}
    found = [global_view.zeros(one) if found.get(id(one)) is None else found[id(one)] for one in flat]
    return tf.nest.pack_sequence_as(sources, found)


def _refuse(name: str) -> Callable[..., Any]:
    def call(view: GlobalView, original: Callable, *args: Any, **options: Any) -> Any:
        if view.rows.replicas > 1:
            raise ValueError(
                f"{name} does not work in a step on several replicas, in {user_code.current_line()}\nCompute the "
                "derivative by nested tf.GradientTapes, or run on one replica."
            )
        return original(*args, **options)

    return call


def _call_function(view: GlobalView, original: Callable, function: Any, *args: Any, **keywords: Any) -> Any:
    """Calls a user's tf.function in the graph of the step: in a graph of its own, replicas could not communicate.

    A function that XLA compiles is traced again: its trace in the step of an earlier model has no gradient here.
    """
    plain = inspect.unwrap(function.python_function)
    if view.in_inner_graph or not user_code.defines(plain):
        return original(function, *args, **keywords)
    if function.function_spec.jit_compile:
        return original(tf.function(function.python_function, jit_compile=True), *args, **keywords)
    return autograph.convert(function.python_function, plain.__qualname__)(*args, **keywords)


def _map(original: Callable, *args: Any, **options: Any) -> Any:
    view = global_view.of_step()
    with contextlib.nullcontext() if view is None else set_in_block(view, in_map=True):
        return original(*args, **options)


def _enter(view: GlobalView, original: Callable, tape: Any) -> Any:
    view.recording.append(tape)
    return original(tape)


def _exit(view: GlobalView, original: Callable, tape: Any, *error: Any) -> Any:
    view.recording[:] = [one for one in view.recording if one is not tape]
    return original(tape, *error)
