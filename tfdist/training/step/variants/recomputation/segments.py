"""Recomputation by a budget: a functional model is cut where one tensor passes, and segments are computed again.

As in Chen and others (arXiv 1604.06174, section 4), the segments have about equal activations, and only the input of a
segment is kept. The last segments are not computed again if the budget allows it.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.variants.recomputation import named_layers

_MOST_SEGMENTS = 64


def install(model: keras.Model, megabytes: float, rows: int) -> tuple[int, int]:
    """Lets segments of the model be computed again, so that it keeps about `megabytes` of activations.

    Args:
        model: a functional or sequential model with one output.
        megabytes: of the outputs of all layers that are kept for the backward pass, an estimate.
        rows: the examples of a replica's forward pass.

    Returns:
        How many segments are computed again, and how many there are.

    Raises:
        ValueError: the model has no places to cut, or it needs more in any case.
    """
    graph = keras.Model(model.inputs, model.outputs) if isinstance(model, keras.Sequential) and model.built else model
    units = [operation for operation in _operations(graph) if not isinstance(operation, keras.layers.InputLayer)]
    sizes = [_bytes(operation, rows) for operation in units]
    budget = megabytes * 1e6
    if sum(sizes) <= budget:
        return 0, 0
    places = _places(graph, units)
    if not places:
        raise ValueError(
            f"config.train.recompute_mb={megabytes:g}: there is no place in {model.name!r} where a single tensor "
            "passes. Name layers in config.train.recompute instead."
        )
    plans = [_divide(sizes, places, count) for count in range(2, min(_MOST_SEGMENTS, len(places) + 1) + 1)]
    cuts = min(plans, key=lambda cuts: _kept(sizes, cuts, len(cuts)))
    again = len(cuts)
    if _kept(sizes, cuts, again) > budget:
        raise ValueError(
            f"config.train.recompute_mb={megabytes:g}: with {rows:,} examples in a pass {model.name!r} keeps at least "
            f"{_kept(sizes, cuts, again) / 1e6:,.3g} MB. Raise the number, or train.micro_batches."
        )
    while again > 1 and _kept(sizes, cuts, again - 1) <= budget:
        again -= 1
    borders = [graph.inputs, *([units[place].output] for place in cuts), graph.outputs]
    segments = [
        keras.Model(before, after[0], name=f"segment_{number}")
        for number, (before, after) in enumerate(itertools.pairwise(borders))
    ]
    for segment in segments[:again]:
        named_layers.check(segment)
    patching.put(model, "call", _in_segments(model, segments, again, model.call))
    return again, len(segments)


def _operations(model: keras.Model) -> list[Any]:
    """Returns the model's operations in the order of their computation.

    Raises:
        ValueError: it has none, several outputs, or an operation that is called more than once.
    """
    if not isinstance(model, keras.Function) or len(model.outputs) != 1:
        raise ValueError(
            f"config.train.recompute_mb needs a functional model with one output. Received: {type(model).__name__} "
            f"{model.name!r}. Name layers in config.train.recompute instead."
        )
    for operation in model.operations:
        try:
            keras.tree.flatten(operation.output)
        except AttributeError:
            raise ValueError(
                f"config.train.recompute_mb: the layer {operation.name!r} is called more than once. Name layers in "
                "config.train.recompute instead."
            ) from None
    return model.operations


def _bytes(operation: Any, rows: int) -> int:
    total = 0
    for tensor in keras.tree.flatten(operation.output):
        lengths = tensor.shape[1:]
        if None in lengths:
            raise ValueError(
                f"config.train.recompute_mb: the output of {operation.name!r} has an unknown size: {tensor.shape}. "
                "Give the model's input a fixed shape."
            )
        total += rows * math.prod(lengths) * tf.as_dtype(keras.backend.standardize_dtype(tensor.dtype)).size
    return total


def _places(model: keras.Model, units: Sequence[Any]) -> list[int]:
    """Returns the numbers of the operations after which only their own output is used, the last one excepted."""
    last_use = {id(tensor): place for place, unit in enumerate(units) for tensor in keras.tree.flatten(unit.input)}
    alive = {id(tensor) for tensor in model.inputs}
    found = []
    for place, unit in enumerate(units[:-1]):
        alive |= {id(tensor) for tensor in keras.tree.flatten(unit.output)}
        alive = {tensor for tensor in alive if last_use.get(tensor, -1) > place}
        if isinstance(unit.output, keras.KerasTensor) and alive == {id(unit.output)}:
            found.append(place)
    return found


def _divide(sizes: Sequence[int], places: Sequence[int], count: int) -> list[int]:
    """Returns at most `count` - 1 of `places`, which divide the sum of `sizes` into about equal parts."""
    share, since, chosen, position = sum(sizes) / count, 0, [], 0
    for place in places:
        since += sum(sizes[position : place + 1])
        position = place + 1
        if since >= share and len(chosen) < count - 1:
            chosen.append(place)
            since = 0
    return chosen or [places[len(places) // 2]]


def _kept(sizes: Sequence[int], cuts: Sequence[int], again: int) -> int:
    """Returns the bytes that are kept if the first `again` segments are computed again."""
    edges = [0, *(cut + 1 for cut in cuts), len(sizes)]
    segments = [sum(sizes[start:stop]) for start, stop in itertools.pairwise(edges)]
    borders = sum(sizes[cut] for cut in cuts[:again])
    return borders + max(segments[:again]) + sum(segments[again:])


def _in_segments(
    model: keras.Model, segments: Sequence[keras.Model], again: int, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a `call` of the model that computes segment after segment."""

    @functools.wraps(original)
    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if tf.executing_eagerly() or not training or mask is not None:
            return original(inputs, training=training, mask=mask)
        by_name = [inputs[one.name] for one in model.inputs] if isinstance(inputs, dict) else inputs
        values = keras.tree.flatten(by_name)
        for number, segment in enumerate(segments):
            given = values[0] if len(values) == 1 else values
            if number < again:
                values = [named_layers.call_again(segment, (given,), {"training": True})]
            else:
                values = [segment(given, training=True)]
        return values[0]

    return call
