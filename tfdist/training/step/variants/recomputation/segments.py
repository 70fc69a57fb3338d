"""Recomputation by a budget: a functional model is cut where one tensor passes, and segments are computed again.

As in Chen and others (arXiv 1604.06174, section 4), the segments have about equal activations, and only the input of a
segment is kept. The last segments are not computed again if the budget allows it.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.layers import model_layers
from tfdist.training.step.variants.recomputation import named_layers

# What to do in place of it, for messages.
_INSTEAD = "Name layers in config.train.recompute, or make them in a keras.RematScope, instead."
_MAX_SEGMENTS = 64


def install(
    model: keras.Model,
    megabytes: float,
    rows: int,
    columns: Mapping[str, tf.TensorSpec],
    field: str = "config.train.recompute_mb",
) -> tuple[int, int]:
    """Lets segments of the model be computed again, so that it keeps about `megabytes` of activations.

    Args:
        model: a functional or sequential model with one output.
        megabytes: of the outputs of all layers that are kept for the backward pass, an estimate.
        rows: the examples of a replica's forward pass.
        columns: of a batch, [examples, ...]. An input of unknown size has that of the column of its name.
        field: what the user has set, for messages.

    Returns:
        How many segments are computed again, and how many there are.

    Raises:
        ValueError: the model has no places to cut, or it needs more in any case.
    """
    graph = keras.Model(model.inputs, model.outputs) if isinstance(model, keras.Sequential) and model.built else model
    named_layers.check_masks(model_layers.of_all_depths(model), field)
    units = [operation for operation in _operations(graph, field) if not isinstance(operation, keras.layers.InputLayer)]
    sizes = _bytes(graph, units, rows, columns, field)
    budget = megabytes * 1e6
    if sum(sizes) <= budget:
        return 0, 0
    places = _places(graph, units)
    if not places:
        raise ValueError(
            f"{field}={megabytes:g}: there is no place in {model.name!r} where a single tensor passes. {_INSTEAD}"
        )
    plans = [_divide(sizes, places, count) for count in range(2, min(_MAX_SEGMENTS, len(places) + 1) + 1)]
    cuts = min(plans, key=lambda cuts: _bytes_kept(sizes, cuts, len(cuts)))
    again = len(cuts)
    if (least := _bytes_kept(sizes, cuts, again)) > budget:
        raise ValueError(
            f"{field}={megabytes:g}: with {rows:,} examples in a pass {model.name!r} keeps at least "
            f"{math.ceil(least / 1e4) / 100:,.2f} MB. Raise the number, or make these fewer."
        )
    while again > 1 and _bytes_kept(sizes, cuts, again - 1) <= budget:
        again -= 1
    borders = [graph.inputs, *([units[place].output] for place in cuts), graph.outputs]
    segments = [
        keras.Model(before, after[0], name=f"segment_{number}")
        for number, (before, after) in enumerate(itertools.pairwise(borders))
    ]
    for segment in segments[:again]:
        named_layers.check(segment, field)
    patching.put(model, "call", _in_segments(model, segments, again, model.call, field))
    return again, len(segments)


def _operations(model: keras.Model, field: str) -> list[Any]:
    """Returns the model's operations in the order of their computation.

    Raises:
        ValueError: it has none, several outputs, or an operation that is called more than once.
    """
    if not isinstance(model, keras.Function) or len(model.outputs) != 1 or isinstance(model.output, dict):
        raise ValueError(
            f"{field} needs a functional model with one output, a tensor. Received: {type(model).__name__} "
            f"{model.name!r}. {_INSTEAD}"
        )
    # An operation knows the tensors of its first call only.
    known = {id(tensor) for tensor in model.inputs}
    for operation in model.operations:
        known |= {id(tensor) for tensor in keras.tree.flatten(operation.output)}
    used = keras.tree.flatten([model.outputs, *(operation.input for operation in model.operations)])
    if any(id(tensor) not in known for tensor in used):
        raise ValueError(
            f"{field}: a layer of {model.name!r} is called more than once, or in another model too. {_INSTEAD}"
        )
    return model.operations


def _bytes(
    model: keras.Model, units: Sequence[Any], rows: int, columns: Mapping[str, tf.TensorSpec], field: str
) -> list[int]:
    """Returns the size of each operation's outputs for `rows` examples."""
    inputs = []
    for tensor in model.inputs:
        shape = columns[tensor.name].shape if None in tensor.shape[1:] and tensor.name in columns else tensor.shape
        inputs.append(keras.KerasTensor((rows, *shape[1:]), tensor.dtype, name=tensor.name))
    outputs = keras.Function(model.inputs, [operation.output for operation in units]).compute_output_spec(inputs)
    sizes = []
    for operation, found in zip(units, outputs, strict=True):
        tensors = keras.tree.flatten(found)
        if any(None in tensor.shape for tensor in tensors):
            shape = operation.output.shape
            raise ValueError(
                f"{field}: the output of {operation.name!r} has an unknown size: {shape}. Give the "
                f"model's input a fixed shape, or the name of a column of a batch: {', '.join(columns)}."
            )
        sizes.append(sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in tensors))
    return sizes


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


def _bytes_kept(sizes: Sequence[int], cuts: Sequence[int], again: int) -> int:
    """Returns the bytes that are kept if the first `again` segments are computed again."""
    edges = [0, *(cut + 1 for cut in cuts), len(sizes)]
    segments = [sum(sizes[start:stop]) for start, stop in itertools.pairwise(edges)]
    borders = sum(sizes[cut] for cut in cuts[:again])
    return borders + max(segments[:again]) + sum(segments[again:])


def _in_segments(
    model: keras.Model, segments: Sequence[keras.Model], again: int, original: Callable[..., Any], field: str
) -> Callable[..., Any]:
    """Returns a `call` of the model that computes segment after segment."""

    @functools.wraps(original)
    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        masked = any(one is not None for one in keras.tree.flatten(mask))
        if tf.executing_eagerly() or not training or masked:
            return original(inputs, training=training, mask=mask)
        by_name = [inputs[one.name] for one in model.inputs] if isinstance(inputs, dict) else inputs
        values = keras.tree.flatten(by_name)
        for number, segment in enumerate(segments):
            given = values[0] if len(values) == 1 else values
            if number < again:
                values = [named_layers.call_again(segment, (given,), {"training": True}, field)]
            else:
                values = [segment(given, training=True)]
        return values[0]

    return call
