"""Recomputation of activations (gradient checkpointing; Chen and others, arXiv 1604.06174): memory for time.

The backward pass of a chosen layer computes its forward pass again from its inputs, so what is computed inside need not
be kept. The config names layers, or `keras.RematScope` does (layers/remat_scopes.py). Random numbers are those of the
first time, because seeds are functions of the call (seed_generators.py), and what a layer assigns, such as moving
averages, is assigned once: both times run in a `keras.StatelessScope`. Sums over replicas are not sent again.
"""

import contextlib
import fnmatch
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import patching, specs
from tfdist.training.step import collectives
from tfdist.training.step.layers import fused, model_layers, normalization
from tfdist.training.step.random_numbers import repeated_passes, seed_generators

_FIELD, _SCOPE = "config.train.recompute", "keras.RematScope"


class _Repeated(threading.local):
    # The layers, by id, whose own `call` is to run in this thread, without another recomputation.
    layers: tuple[int, ...] = ()


_repeated = _Repeated()


def install(model: keras.Model, config: config_lib.Config) -> list[str]:
    """Lets the layers that `config.train.recompute` names be computed again in the backward pass; returns their names.

    Raises:
        ValueError: a name fits no layer, or a layer cannot be computed again.
    """
    chosen: list[keras.Layer] = []
    found = [layer for layer in model_layers.of_all_depths(model) if layer is not model]
    for pattern in config.train.recompute:
        matching = [layer for layer in found if fnmatch.fnmatchcase(layer.name, pattern)]
        if not matching:
            names = list(dict.fromkeys(layer.name for layer in found))
            hint = specs.nearest(pattern, names) or f" The first ones: {', '.join(names[:5])}."
            raise ValueError(f"{_FIELD}: no layer has the name {pattern!r}.{hint}")
        chosen += [layer for layer in matching if layer not in chosen]
    _check_masks(model_layers.of_all_depths(model), _FIELD)
    inner = {id(one) for layer in chosen for one in model_layers.of_all_depths(layer)[1:]}
    outermost = [layer for layer in chosen if id(layer) not in inner]
    for layer in outermost:
        _check(layer, _FIELD)
        patching.replace_attribute(layer, "call", _recomputing(layer, layer.call))
    return [layer.name for layer in outermost]


def of_function(function: Callable[..., Any], recompute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `recompute(function)`, whose second computation draws the numbers of the first one in a run.

    Args:
        recompute: `tf.recompute_grad`.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        places: list[dict[str, Any]] = []

        def compute(*args: Any, **keywords: Any) -> Any:
            places.append(repeated_passes.place_in_pass())
            again = repeated_passes.repeat_from(places[0]) if places[1:] else contextlib.nullcontext()
            with again:
                return function(*args, **keywords)

        return recompute(compute)(*args, **keywords)

    return call


def remat_scope(operation: keras.Operation) -> Any:
    """Returns the arguments of the `keras.RematScope` in which a layer or another operation was made, or None."""
    return operation._remat_mode


def of_scope(
    of_keras: Callable[..., Any], operation: keras.Operation, original: Callable[..., Any], *args: Any, **keywords: Any
) -> Callable[..., Any]:
    """Returns what a layer or another operation of a `keras.RematScope` calls in the place of `original`, its `call`.

    In the forward passes of runs a layer is computed again, if the scope includes it. In other graphs it is not: it
    would draw other numbers.

    Args:
        of_keras: the method of Keras that this one replaces.
    """
    scope = remat_scope(operation)
    if not isinstance(operation, keras.Layer):  # It keeps nothing but its inputs and its outputs.
        return original
    mode = None if scope is None else scope.mode
    if mode == "activations" and isinstance(operation, keras.layers.RNN):
        return original  # Keras would set its activation, which is a property of LSTM and GRU.
    # Activations have no keyword arguments in graphs, and draw nothing.
    if tf.executing_eagerly() or mode in (None, "activations"):
        return of_keras(operation, original, *args, **keywords)
    # In a layer that is computed again, all layers are.
    in_another = bool(_repeated.layers)
    if in_another or not seed_generators.is_in_pass() or not _includes(scope, operation, args, keywords):
        return original
    _check_masks(model_layers.of_all_depths(operation)[1:], _SCOPE)
    _check(operation, _SCOPE)
    return _recomputing(operation, original, _SCOPE)


def _includes(scope: Any, layer: keras.Layer, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Returns whether a scope wants a layer, called with these arguments, to be computed again."""
    if scope.mode == "list_of_layers":
        return layer.name in scope.layer_names
    # A model keeps as much as without while it is computed again as a whole. Its layers are in the scope, too.
    if isinstance(layer, keras.Model):
        return False
    return scope.mode == "full" or _output_size(layer, args, keywords) > scope.output_size_threshold


def _output_size(layer: keras.Layer, args: Sequence[Any], keywords: dict[str, Any]) -> int:
    """Returns how many numbers the outputs of a layer have, as Keras counts them: an unknown size counts as 1."""

    def symbol(value: Any) -> Any:
        return keras.KerasTensor(value.shape, value.dtype.name) if isinstance(value, tf.Tensor) else value

    args, keywords = keras.tree.map_structure(symbol, (tuple(args), keywords))
    with repeated_passes.repeat_from(repeated_passes.place_in_pass()):  # The draws of a trial do not count.
        outputs = layer.compute_output_spec(*args, **keywords)
    return sum(math.prod(size or 1 for size in output.shape) for output in keras.tree.flatten(outputs))


def _check_masks(layers: Iterable[keras.Layer], field: str) -> None:
    """Raises ValueError if one of `layers` makes a Keras mask: the second computation would not have it."""
    for layer in layers:
        of_user = type(layer).compute_mask.__module__.partition(".")[0] != "keras"
        if of_user or isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            raise ValueError(
                f"{field} cannot be used: the layer {layer.name!r} makes a Keras mask, which the second computation "
                "would not have. Make the mask an input of the model, or remove the field."
            )


def _check(layer: keras.Layer, field: str) -> None:
    """Raises ValueError, which names the field and the layer, if a layer cannot be computed again."""
    parts, exact = model_layers.of_all_depths(layer), normalization.synchronized_layers(layer)
    for part in parts:
        if getattr(part, "activity_regularizer", None) is not None:
            raise ValueError(f"{field}: the layer {part.name!r} has an activity_regularizer: it cannot be recomputed.")
        if getattr(part, "synchronized", False) and (part is layer or part not in exact):
            raise ValueError(
                f"{field}: the layer {part.name!r} normalises over the batches of several replicas, which can be "
                "recomputed in a layer or model that contains it, and only as keras.layers.BatchNormalization does it."
            )
    if not _takes_training(layer) and any(_takes_training(part) for part in parts[1:]):
        raise ValueError(
            f"{field}: call() of the layer {layer.name!r} has no argument `training`, which layers in it have. Add "
            "it, and pass it on."
        )


def _takes_training(layer: keras.Layer) -> bool:
    return "training" in inspect.signature(layer.call).parameters


def _recomputing(layer: keras.Layer, original: Callable[..., Any], field: str = _FIELD) -> Callable[..., Any]:
    """Returns a `call` of the layer whose gradient computes `original` again."""
    takes_training = _takes_training(layer)

    @functools.wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        again = _repeated.layers
        trains = keywords.get("training", False) if takes_training else bool(layer.trainable_variables)
        if id(layer) in again or tf.executing_eagerly() or not trains:
            return original(*args, **keywords)
        return _call_again(layer, args, keywords, field)

    return call


class _WithoutCasts(keras.Layer):
    """Calls a function in which variables have their own dtype: in other layers Keras may cast what is read."""

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


def _call_again(layer: keras.Layer, args: Sequence[Any], keywords: dict[str, Any], field: str) -> Any:
    """Calls a layer in a graph with tensors of any shapes, and returns its outputs; its gradient computes it again."""
    flat, made = tf.nest.flatten((args, keywords)), {}
    places = [place for place, value in enumerate(flat) if isinstance(value, tf.Tensor)]
    trainable, others = [*layer.trainable_variables], [*layer.non_trainable_variables]
    # Values at the time of the first call: a layer may assign what it reads.
    fixed = _read(others)
    start = repeated_passes.place_in_pass()

    def compute(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the layer's outputs, flat, and the values that it assigns, for inputs and trainable variables."""
        inputs = list(flat)
        for place, value in zip(places, tensors, strict=False):
            inputs[place] = value
        again_args, again_keywords = tf.nest.pack_sequence_as((args, keywords), inputs)
        values = [*tensors[len(places) :], *fixed]
        pairs = list(zip([*trainable, *others], values, strict=True))
        scope = _without_casts(lambda: keras.StatelessScope(pairs, collect_losses=True))
        repeated = patching.set_in_block(_repeated, layers=(*_repeated.layers, id(layer)))
        with repeated, scope, fused.constant_statistics():
            outputs = layer(*again_args, **again_keywords)
            present = [scope.get_current_value(variable) for variable in others]
            changed = [
                (variable, new) for variable, new, old in zip(others, present, fixed, strict=True) if new is not old
            ]
        if scope.losses:
            raise ValueError(f"{field}: {layer.name!r} calls add_loss: it cannot be recomputed.")
        made.setdefault("structure", outputs)
        made.setdefault("changed", [variable for variable, _ in changed])
        return tf.nest.flatten(outputs), [value for _, value in changed]

    @tf.custom_gradient
    def recomputed(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[Any]]]:
        (outputs, assigned), sums = _keep_sums(lambda: compute(tensors))

        def gradient(*upstream: tf.Tensor) -> list[Any]:
            # After the upstream gradients are there: TensorFlow would otherwise take the results of the first time.
            with tf.control_dependencies(upstream):
                tensors_again = [tf.identity(tensor) for tensor in tensors]
            with tf.GradientTape() as tape:
                tape.watch([tensor for tensor in tensors_again if tensor.dtype.is_floating])
                with repeated_passes.repeat_from(start), _repeat_sums(sums):
                    repeated, _ = compute(tensors_again)
            return tape.gradient(repeated, tensors_again, output_gradients=list(upstream[: len(repeated)]))

        return [*outputs, *map(tf.stop_gradient, assigned)], gradient

    results = tf.nest.flatten(recomputed(*(flat[place] for place in places), *_read(trainable)))
    outputs = results[: len(results) - len(made["changed"])]
    for variable, value in zip(made["changed"], results[len(outputs) :], strict=True):
        variable.assign(value)
    return tf.nest.pack_sequence_as(made["structure"], outputs)


def _keep_sums(compute: Callable[[], Any]) -> tuple[Any, list[tf.Tensor]]:
    """Returns what `compute` returns, and the results of `sum_differentiable` in it, for `_repeat_sums`."""
    kept: list[tf.Tensor] = []

    def reduce(value: tf.Tensor) -> tf.Tensor:
        kept.append(collectives.all_reduce(value))
        return kept[-1]

    with collectives.reduce_context(reduce):
        return compute(), kept


def _repeat_sums(kept: list[tf.Tensor]) -> contextlib.AbstractContextManager[None]:
    """In the block, which traces the same computation, its sums are `kept`, and only its gradient communicates."""
    sums = iter(kept)

    @tf.custom_gradient
    def reduce(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(next(sums)), collectives.all_reduce

    return collectives.reduce_context(reduce)
