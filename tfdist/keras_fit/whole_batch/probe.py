"""Finds layers whose call mixes the rows of a batch: the global view would give them only a replica's rows.

Each call of a layer that a step makes is computed as a whole and in two parts, on random rows, with nothing written and
without training: dropout is off, and batch normalisation uses its moving statistics. A layer mixes rows if the parts
differ from the whole by more than rounding.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.config import patching
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.whole_batch import attributes, rows
from tfdist.keras_fit.whole_batch.global_view import GlobalView
from tfdist.training import api as trainer

# Bytes of a number -> rounding, as a fraction of the largest value of an output.
_ROUNDING = {2: 2e-2, 4: 5e-5, 8: 5e-5}
# Rows that a batch of unknown size gets: few other tensors have as many.
_ROWS = 26
_MIXING = (keras.layers.MixUp, keras.layers.CutMix)
# Functions that draw random numbers. A probe makes them return a constant, so a layer's output for a row is the same in
# any batch.
_DRAWS = [
    *((keras.random, name) for name in ("normal", "truncated_normal", "uniform", "randint", "gamma", "beta")),
    *((tf.random, name) for name in ("normal", "truncated_normal", "uniform")),
    *((tf.random, f"stateless_{name}") for name in ("normal", "truncated_normal", "uniform")),
]
# The name of the operations of draws that are replaced by constants.
_REPLACED = "replaced_draw"


@dataclasses.dataclass(kw_only=True)
class Probe(GlobalView):
    """The view of a step that compares each call of a layer, also inside others, with calls on parts of its rows."""

    # A layer, what of it was compared, in words, and the difference in units of rounding: float32 [].
    found: list[tuple[keras.Layer, str, tf.Tensor]] = dataclasses.field(default_factory=list)
    # The same for tensors that a call leaves in attributes, each with its copy, which the step finds in its place.
    left: list[tuple[keras.Layer, str, tf.Tensor, tf.Tensor]] = dataclasses.field(default_factory=list)
    compares: bool = True
    # Layers of the user's that draw random numbers, so that calls cannot be compared.
    untried: list[str] = dataclasses.field(default_factory=list)
    # What calls have assigned to variables.
    scope: keras.StatelessScope = dataclasses.field(
        default_factory=functools.partial(keras.StatelessScope, collect_losses=True)
    )
    # Losses that the call of a layer adds, each with words for a message; None outside of a call from the step.
    numbers: list[tuple[str, tf.Tensor]] | None = None

    def call(self, original: Callable[..., Any], layer: keras.Layer, *args: Any, **keywords: Any) -> Any:
        if self.in_layer:
            return self.compare(original, layer, *args, **keywords)
        return super().call(functools.partial(self.compare, original), layer, *args, **keywords)

    def add_loss(self, original: Callable[..., None], layer: keras.Layer, loss: Any) -> None:
        floating = [one for one in keras.tree.flatten(loss) if isinstance(one, tf.Tensor) and one.dtype.is_floating]
        if self.numbers is not None and not self.in_inner_graph:
            words = f"what {_name(layer)} adds as a loss"
            self.numbers += [(words, one) for one in floating if one.shape.rank == 0]
        super().add_loss(original, layer, loss)

    def log(self, text: str) -> None:
        """Logs nothing: the trace of the step itself logs, without the calls that only compare."""

    def draw_constant(self, original: Callable[..., tf.Tensor], *args: Any, **options: Any) -> tf.Tensor:
        """Replaces a function that draws: returns one constant in the shape and dtype of the draw."""
        with tf.name_scope(_REPLACED):
            drawn = original(*args, **options)
        return tf.fill(tf.shape(drawn), tf.cast(0.4, drawn.dtype))

    def _draws(self, first: int) -> bool:
        """Returns whether operations from the number `first` on draw numbers that are not made constant."""
        operations = [op for op in self.graph.get_operations()[first:] if _REPLACED not in op.name]
        return any("Random" in op.type or "RngState" in op.type for op in operations)

    def _tensors_left(self, layer: keras.Layer) -> list[tuple[str, tf.Tensor]]:
        """Returns the tensors that the outermost call of a layer has left in attributes, with words for a message."""
        places = attributes.tensors_of(layer, self.graph) if self.numbers is None else []
        named = [(_name(one if isinstance(one, keras.Layer) else layer), value) for one, _, value in places]
        return [(words, one) for words, value in named for one in tf.nest.flatten(value)]

    def _copy_attributes(self, layer: keras.Layer) -> None:
        """Sets the tensors in attributes to copies, which nothing reads yet."""
        places = attributes.tensors_of(layer, self.graph)
        values = [value for *_, value in places]
        copy = tf.nest.map_structure(lambda one: tf.identity(one) if isinstance(one, tf.Tensor) else one, values)
        attributes.assign(places, copy)

    def compare(self, original: Callable[..., Any], layer: keras.Layer, *args: Any, **keywords: Any) -> Any:
        """Calls a layer, in another layer or in the step, on all of its rows and on two parts of them.

        Keras' own layers without layers in them get training=False: dropout would draw, and batch normalisation is
        reported elsewhere.
        """
        is_leaf = _is_of_keras(layer) and len(_parts(layer)) == 1
        if is_leaf and "training" in inspect.signature(layer.call).parameters:
            keywords["training"] = False
        held = attributes.tensors_of(layer, self.graph)
        given = args, keywords, [value for *_, value in held]
        flat = tf.nest.flatten(given)
        times = [self.rows_per_example(one) if isinstance(one, tf.Tensor) else 0 for one in flat]
        if not (self.compares and self.in_layer and any(times)):
            return original(layer, *args, **keywords)
        # Before the call, which may take masks off its inputs.
        masks = [rows.mask_of(one) if n else None for one, n in zip(flat, times, strict=True)]
        before, is_outermost = self.num_operations(), self.numbers is None
        numbers = [[] if is_outermost else self.numbers]
        assigned = dict(self.scope.state_mapping)
        begin = attributes.Attributes(attributes.objects_of(layer))
        with patching.set_in_block(self, numbers=numbers[0]):
            whole = original(layer, *args, **keywords)
        left = self._tensors_left(layer)
        if self.in_inner_graph:
            return whole
        if self._draws(before):
            if not _is_of_keras(layer):
                self.untried.append(_name(layer))
            return whole
        if left:
            self._copy_attributes(layer)
        copies, parts_left = self._tensors_left(layer), []
        parts, kept = [], attributes.Attributes(attributes.objects_of(layer))
        for low, high in ((0, self.plan.batch // 2), (self.plan.batch // 2, self.plan.batch)):
            cut = [
                _rows(one, mask, int(n * low), int(n * high)) if n else one
                for one, n, mask in zip(flat, times, masks, strict=True)
            ]
            some, named, values = tf.nest.pack_sequence_as(given, cut)
            numbers.append([])
            # Each call begins with the same attributes and variables: a layer may update them, and use the new values.
            begin.restore()
            attributes.assign(held, values)
            with (
                patching.set_in_block(self, compares=False, numbers=numbers[-1]),
                patching.set_in_block(self.scope, state_mapping=dict(assigned)),
            ):
                parts.append(tf.nest.flatten(original(layer, *some, **named)))
            parts_left.append(self._tensors_left(layer))
            kept.restore()
        for one, *halves in zip(tf.nest.flatten(whole), *parts, strict=True):
            if isinstance(one, tf.Tensor) and one.dtype != tf.string:
                self.found.append((layer, _name(layer), _difference(one, halves)))
        for (words, one), (_, copy), *halves in zip(left, copies, *parts_left, strict=True):
            if isinstance(one, tf.Tensor) and one.dtype != tf.string:
                self.left.append((layer, words, _difference(one, [half for _, half in halves]), copy))
        if is_outermost:
            for (words, one), *halves in zip(*numbers, strict=True):
                self.found.append((layer, words, _difference(one, [half for _, half in halves])))
        return whole


def _rows(value: tf.Tensor, mask: tf.Tensor | None, start: int, stop: int) -> tf.Tensor:
    """Returns rows of a tensor, with those of its mask."""
    return rows.with_mask(value[start:stop], None if mask is None else mask[start:stop])


def _is_of_keras(layer: keras.Layer) -> bool:
    return type(layer).__module__.startswith("keras.")


def _name(layer: keras.Layer) -> str:
    return f"{type(layer).__name__} ({layer.name})"


def layers_known_to_mix(model: keras.Model) -> tuple[list[keras.layers.Layer], list[str]]:
    """Returns the layers that are, or contain, layers of Keras for mixing examples, and the names of the latter."""
    layers = [(one, [part.name for part in _parts(one) if isinstance(part, _MIXING)]) for one in _parts(model)]
    return [one for one, names in layers if names], layers[0][1]


def _parts(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    return trainer.layers_of_all_depths(layer)


def may_mix(model: keras.Model) -> bool:
    """Returns whether a model has layers of the user's, functions as layers, or layers of Keras that may mix rows."""
    for layer in _parts(model):
        if isinstance(layer, keras.layers.Lambda) or not _is_of_keras(layer):
            return True
        if isinstance(layer, _MIXING):
            return True
        axes = keras.tree.flatten(getattr(layer, "axis", None))
        if 0 in axes or any(not isinstance(one, keras.layers.Layer) for one in getattr(layer, "operations", ())):
            return True
    return False


def _difference(whole: tf.Tensor, halves: list[tf.Tensor]) -> tf.Tensor:
    rounding = _ROUNDING.get(whole.dtype.size, 5e-5)
    if not whole.dtype.is_floating:
        whole, halves = (tf.nest.map_structure(lambda one: tf.cast(one, tf.float32), part) for part in (whole, halves))
        halves = halves if whole.shape.rank else [half * len(halves) for half in halves]  # Counts are added.
    together = tf.concat(halves, 0) if whole.shape.rank else tf.add_n(halves) / len(halves)
    if whole.shape.rank and whole.shape[0] is not None and whole.shape == halves[0].shape:  # It has no rows.
        whole = tf.concat([whole] * len(halves), 0)
    if not whole.shape.is_compatible_with(together.shape):
        return tf.constant(np.inf, tf.float32)
    whole, together = tf.cast(whole, tf.float32), tf.cast(together, tf.float32)
    return tf.reduce_max(tf.abs(whole - together)) / (tf.reduce_max(tf.abs(whole)) + 1e-6) / rounding


def random_rows(element_spec: Any, size: int) -> Any:
    """Returns random tensors [size, ...] for nested specs; None if one is not dense."""
    random = np.random.default_rng(0)

    def rows(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [1 if one is None else one for one in spec.shape]
        shape = [spec.shape[0] or size, *shape[1:]] if shape else []
        if spec.dtype == tf.string:
            return tf.constant(np.array(["one", "two three"])[random.integers(0, 2, shape)])
        if spec.dtype.is_floating:
            # Rows of many directions, with larger values in the second half.
            sizes = np.reshape(np.geomspace(0.03, 3.0, shape[0]), [-1] + [1] * (len(shape) - 1)) if shape else 1.0
            return tf.cast(sizes * random.uniform(0.0, 1.0, shape) ** 4 + 0.01, spec.dtype)
        return tf.cast(random.integers(0, 2, shape), spec.dtype)

    flat = tf.nest.flatten(element_spec)
    if not all(one is None or isinstance(one, tf.TensorSpec) for one in flat):
        return None
    return tf.nest.map_structure(lambda spec: spec if spec is None else rows(spec), element_spec)


def mixing_layers(
    trace: Callable[[Probe, Any], Any], element_spec: Any
) -> tuple[list[keras.Layer], list[str], list[str]]:
    """Finds the layers that mix the rows of a batch.

    Args:
        trace: runs a step without effect on a nested batch, under a view.
        element_spec: of the batch.

    Returns:
        These layers, the names of the innermost ones, and which ones could not be tried, with the reason.
    """
    divided = base.have_rows(element_spec)
    specs = [one for one in tf.nest.flatten(element_spec) if one is not None]
    static = next((one.shape[0] for one, has in zip(specs, divided, strict=True) if has and one.shape.rank), None)
    size = static or _ROWS
    data = random_rows(element_spec, size)
    if data is None:
        return [], [], ["a layer (the data is ragged or sparse)"]
    if size < 2:
        return [], [], []
    probes: list[Probe] = []
    flat = [one for one in tf.nest.flatten(data) if one is not None]

    def differences(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given = iter(tensors)
        batch = tf.nest.map_structure(lambda one: one if one is None else next(given), data)
        probe = Probe.of_batch(size, 2, base.numbers_of_rows(batch, divided))
        with contextlib.ExitStack() as stack:
            stack.enter_context(probe.scope)
            stack.enter_context(keras.SymbolicScope())  # Otherwise penalties on weights get None for a weight.
            for owner, name in _DRAWS:
                stack.enter_context(patching.patch(owner, name, probe.draw_constant))
            trace(probe, batch)
        probes.append(probe)
        probe.found += [entry for *entry, copy in probe.left if copy.consumers()]
        return [value for *_, value in probe.found]

    try:
        values = [float(one) for one in trainer.compute_pruned(differences, flat)]
    except Exception as error:  # A step that needs other values or another size.
        return [], [], [f"a layer (a call with random values raised {type(error).__name__})"]
    (probe,) = probes
    mixing = [(layer, words) for (layer, words, _), value in zip(probe.found, values, strict=True) if value > 1.0]
    untried = dict.fromkeys(f"{name} (it draws random numbers)" for name in probe.untried)
    ids = {id(layer) for layer, words in mixing if words == _name(layer)}
    inner = [
        words for layer, words in mixing if words != _name(layer) or not ids & {id(part) for part in _parts(layer)[1:]}
    ]
    return [layer for layer, _ in mixing], list(dict.fromkeys(inner)), list(untried)
