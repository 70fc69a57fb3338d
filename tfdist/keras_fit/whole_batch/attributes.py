"""Tensors that a user's code keeps in attributes while a step is traced.

They may be set in the call of a layer and read by the step, or the other way round: `tensors_of`. The replicas of a
process are traced in threads, which take turns when they communicate. Each has values of its own: `Attributes`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import user_code
from tfdist.training import api as trainer

# Keras' list of the losses that a layer has added.
_LOSSES = "_losses"


def objects_of(layer: keras.Layer) -> list[Any]:
    """Returns the layers in a layer or model, itself included, and the user's objects in their attributes and lists."""
    waiting: list[Any] = [*trainer.layers_of_all_depths(layer)]
    found: dict[int, Any] = {}
    while waiting:
        one = waiting.pop(0)
        if id(one) not in found:
            found[id(one)] = one
            for value in vars(one).values():
                parts = value if isinstance(value, list | tuple) else [value]
                waiting += [part for part in parts if _is_users(part)]
    return [*found.values()]


def tensors_of(layer: keras.Layer, graph: tf.Graph) -> list[tuple[Any, str, Any]]:
    """Returns the attributes with tensors of a graph, of those objects of a layer whose classes are the user's.

    Returns:
        For each the object, the name, and the value: a tensor, or a list, tuple or dict with tensors in it.
    """
    found = [(one, name, value) for one in objects_of(layer) if _is_users(one) for name, value in vars(one).items()]
    return [place for place in found if place[1] != _LOSSES and _holds_tensors(place[2], graph)]


def assign(places: Sequence[tuple[Any, str, Any]], values: Sequence[Any]) -> None:
    """Sets the attributes of `tensors_of` to other values. Keras does not track them."""
    for (one, name, _), value in zip(places, values, strict=True):
        vars(one)[name] = value


def replace(
    places: Sequence[tuple[Any, str, Any]], old: Sequence[Any], before: Sequence[list[Any]], new: Sequence[Any]
) -> None:
    """Sets those attributes to `new` that are still the values `old`, which had the flat parts `before`."""
    for (one, name, _), value, parts, whole in zip(places, old, before, new, strict=True):
        if vars(one).get(name) is value and [*map(id, tf.nest.flatten(value))] == [*map(id, parts)]:
            vars(one)[name] = whole


def added_losses(layer: keras.Layer) -> list[Any]:
    """Returns Keras' list of the losses that a layer has added on this replica."""
    return layer._losses


class Attributes:
    """The attributes of objects, and what is in their lists and dicts, at one moment."""

    def __init__(self, objects: Sequence[Any]):
        self._values = [(one, vars(one).copy() if _is_users(one) else {}) for one in objects]
        held = [value for one in objects for name, value in vars(one).items() if _is_set_by_step(one, name, value)]
        self._contents = [(one, one.copy()) for one in held if isinstance(one, list | dict)]

    def restore(self) -> None:
        """Sets the attributes to their values at that moment, and deletes other attributes that now hold tensors."""
        for one, values in self._values:
            for name in [*vars(one)] if values else ():
                if name not in values and _holds_tensors(vars(one)[name]):
                    del vars(one)[name]
            vars(one).update(values)
        for one, before in self._contents:
            kind = list if isinstance(one, list) else dict  # Keras would no longer track what its own methods remove.
            kind.clear(one)
            (list.extend if kind is list else dict.update)(one, before)


def _is_set_by_step(one: Any, name: str, value: Any) -> bool:
    """Returns whether a step may change what is in an attribute: other lists with an underscore are Keras' own."""
    return name == _LOSSES or (_is_users(one) and (not name.startswith("_") or _holds_tensors(value)))


def _is_users(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type) and user_code.defines(type(value))


def _holds_tensors(value: Any, graph: tf.Graph | None = None) -> bool:
    """Returns whether a value is a tensor of a graph, any without `graph`, or a list, tuple or dict with one."""
    if isinstance(value, dict):
        # tf.nest sorts the keys of a dict: one whose keys are neither all strings nor all integers does not count.
        sortable = any(all(isinstance(key, kind) for key in value) for kind in (str, int))
        return sortable and _holds_tensors([*value.values()], graph)
    if isinstance(value, list | tuple):
        return any(_holds_tensors(one, graph) for one in value)
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        value = tf.nest.flatten(value, expand_composites=True)[0]
    return tf.is_symbolic_tensor(value) and graph in (None, getattr(value, "graph", None))
