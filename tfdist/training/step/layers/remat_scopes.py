"""Recomputation of activations (gradient checkpointing; Chen and others, arXiv 1604.06174): less memory, more time.

The backward pass of a layer in a `keras.RematScope` recomputes the forward pass from the layer's inputs, so that inner
activations need not be kept; `config.train.recompute` puts layers into such a scope by name. Keras' own implementation
supports no keyword arguments in graphs, such as `training`, and draws new dropout masks. Here the random numbers are
the same, because seeds are functions of the call (seed_generators.py). What a layer assigns, such as moving averages,
is assigned once, because both computations run in a `keras.StatelessScope`.
"""

import fnmatch
import functools
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import patching, specs
from tfdist.training.step import collectives
from tfdist.training.step.layers import fused, model_layers
from tfdist.training.step.random_numbers import repeated_passes, seed_generators

_WHO = "keras.RematScope and config.train.recompute"
# The original function, which `adopt` replaces.
_original_recompute_grad = tf.recompute_grad


class _Thread(threading.local):
    # Whether this thread is in a recomputed layer: its inner layers are recomputed with it.
    inside = False


_thread = _Thread()


def adopt() -> None:
    """Replaces Keras' recomputation in this process. Keras calls it only for layers in a scope."""
    patching.replace_attribute(keras.Layer, "rematerialized_call", _choose)
    # An operation that is not a layer is not recomputed: it keeps only inputs and outputs, so no memory would be saved.
    patching.replace_attribute(keras.Operation, "rematerialized_call", lambda operation, original, *_, **__: original)
    patching.replace_attribute(tf, "recompute_grad", _refuse_functions)


def put_into_scope(model: keras.Model, config: config_lib.Config) -> int:
    """Puts the layers that `config.train.recompute` names into a scope; returns their number.

    Raises:
        ValueError: a name matches no layer, or a layer cannot be recomputed.
    """
    found = [layer for layer in model_layers.all_layers(model) if layer is not model]
    chosen: dict[int, keras.Layer] = {}
    for pattern in config.train.recompute:
        matching = [layer for layer in found if fnmatch.fnmatchcase(layer.name, pattern)]
        if not matching:
            names = list(dict.fromkeys(layer.name for layer in found))
            hint = specs.nearest(pattern, names) or f" The first ones: {', '.join(names[:5])}."
            raise ValueError(f"config.train.recompute: no layer has the name {pattern!r}.{hint}")
        chosen |= {id(layer): layer for layer in matching}
    for layer in chosen.values():
        _check(layer)
        scope = types.SimpleNamespace(mode="list_of_layers", layer_names=[layer.name])
        patching.replace_attribute(layer, "_remat_mode", scope)
    return len(chosen)


def remat_scope(layer: keras.Layer) -> Any:
    """Returns the arguments of the `keras.RematScope` in which a layer was made, or None."""
    return layer._remat_mode


def _choose(layer: keras.Layer, original: Callable[..., Any], *args: Any, **keywords: Any) -> Callable[..., Any]:
    """Returns what a layer in a scope calls instead of `original`, its `call`.

    Only the forward passes of runs are recomputed: in other graphs, the second computation would draw other numbers.
    """
    scope = remat_scope(layer)
    if _thread.inside or scope is None or scope.mode is None:
        return original
    if tf.executing_eagerly() or not seed_generators.is_in_pass():
        return original
    if scope.mode not in ("full", "list_of_layers"):
        raise ValueError(f'keras.RematScope must have the mode "full" or "list_of_layers". Received: {scope.mode!r}')
    # Recomputing a whole model at once would save no memory. Its layers are in the scope, too.
    wanted = layer.name in scope.layer_names if scope.mode == "list_of_layers" else not isinstance(layer, keras.Model)
    trains = keywords.get("training", False) if _takes_training(layer) else bool(layer.trainable_variables)
    if not wanted or not trains:
        return original
    _check(layer)
    return functools.partial(_call_recomputed, layer)


def _refuse_functions(function: Callable[..., Any]) -> Callable[..., Any]:
    if not tf.executing_eagerly() and seed_generators.is_in_pass():
        raise ValueError(
            "keras.remat and tf.recompute_grad draw other random numbers when they recompute: make the function a "
            "layer in a keras.RematScope."
        )
    return _original_recompute_grad(function)


def _check(layer: keras.Layer) -> None:
    """Raises ValueError if a layer cannot be recomputed."""
    parts = model_layers.all_layers(layer)
    for part in parts[1:]:
        of_user = type(part).compute_mask.__module__.partition(".")[0] != "keras"
        if of_user or isinstance(part, keras.layers.Masking) or getattr(part, "mask_zero", False):
            raise ValueError(
                f"{_WHO} cannot be used for {layer.name!r}: its layer {part.name!r} makes a Keras mask, which the "
                "second computation would not have. Make the mask an input of the model."
            )
    for part in parts:
        if getattr(part, "activity_regularizer", None) is not None:
            raise ValueError(f"{_WHO}: the layer {part.name!r} has an activity_regularizer: it cannot be recomputed.")
    if not _takes_training(layer) and any(_takes_training(part) for part in parts[1:]):
        raise ValueError(
            f"{_WHO}: call() of the layer {layer.name!r} has no argument `training`, which layers in it have. Add it, "
            "and pass it on."
        )


def _takes_training(layer: keras.Layer) -> bool:
    return "training" in inspect.signature(layer.call).parameters


class _WithoutCasts(keras.Layer):
    """Calls a function in which variables have their own dtype; in other layers, Keras may cast them when read."""

    def __init__(self):
        super().__init__(name="without_casts", autocast=False)
        self.results: list[Any] = []

    def call(self, function: Callable[[], Any]) -> None:
        """Calls the function; appends what it returns to `results`."""
        self.results.append(function())


def _without_casts(function: Callable[[], Any]) -> Any:
    layer = _WithoutCasts()
    layer(function=function)
    return layer.results[0]


def _read(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns the values of variables in their own dtypes."""
    return _without_casts(lambda: [tf.convert_to_tensor(variable.value) for variable in variables])


def _call_recomputed(layer: keras.Layer, *args: Any, **keywords: Any) -> Any:
    """Calls a layer in a graph with tensors of any shape, and returns its outputs; the gradient recomputes them."""
    flat, made = tf.nest.flatten((args, keywords)), {}
    places = [place for place, value in enumerate(flat) if isinstance(value, tf.Tensor)]
    trainable, others = [*layer.trainable_variables], [*layer.non_trainable_variables]
    # Values before the first computation: a layer may assign what it reads.
    fixed = _read(others)
    start = repeated_passes.place_in_pass()

    def refuse_sum(value: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            f"{_WHO}: the layer {layer.name!r} normalises over the batches of several replicas, so it cannot be "
            "recomputed."
        )

    def compute(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the layer's outputs, flat, and the values that it assigns, for inputs and trainable variables."""
        inputs = list(flat)
        for place, value in zip(places, tensors, strict=False):
            inputs[place] = value
        again_args, again_keywords = tf.nest.pack_sequence_as((args, keywords), inputs)
        values = [*tensors[len(places) :], *fixed]
        pairs = list(zip([*trainable, *others], values, strict=True))
        scope = _without_casts(lambda: keras.StatelessScope(pairs, collect_losses=True))
        inside = patching.set_in_block(_thread, inside=True)
        with inside, scope, fused.constant_statistics(), collectives.reduce_context(refuse_sum):
            outputs = layer(*again_args, **again_keywords)
            present = [scope.get_current_value(variable) for variable in others]
            changed = [
                (variable, new) for variable, new, old in zip(others, present, fixed, strict=True) if new is not old
            ]
        if scope.losses:
            raise ValueError(f"{_WHO}: {layer.name!r} calls add_loss: it cannot be recomputed.")
        made.setdefault("structure", outputs)
        made.setdefault("changed", [variable for variable, _ in changed])
        return tf.nest.flatten(outputs), [value for _, value in changed]

    @tf.custom_gradient
    def recomputed(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[Any]]]:
        outputs, assigned = compute(tensors)

        def gradient(*upstream: tf.Tensor) -> list[Any]:
            # Recompute only when the upstream gradients are ready: otherwise TensorFlow would reuse the first results.
            with tf.control_dependencies(upstream):
                tensors_again = [tf.identity(tensor) for tensor in tensors]
            with tf.GradientTape() as tape:
                tape.watch([tensor for tensor in tensors_again if tensor.dtype.is_floating])
                with repeated_passes.repeat_from(start):
                    repeated, _ = compute(tensors_again)
            return tape.gradient(repeated, tensors_again, output_gradients=list(upstream[: len(repeated)]))

        return [*outputs, *map(tf.stop_gradient, assigned)], gradient

    results = tf.nest.flatten(recomputed(*(flat[place] for place in places), *_read(trainable)))
    outputs = results[: len(results) - len(made["changed"])]
    for variable, value in zip(made["changed"], results[len(outputs) :], strict=True):
        variable.assign(value)
    return tf.nest.pack_sequence_as(made["structure"], outputs)
