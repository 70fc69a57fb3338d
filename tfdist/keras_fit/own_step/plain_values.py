"""Numbers and texts in attributes, which a step reads when it is traced.

Keras traces a step once for each `compile`: what the script changes between two calls of `fit`, such as a dropout's
rate, a momentum or `trainable`, has no effect until the next one. tfdist traces a step for each `fit`, with the values
of the first.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching, text
from tfdist.keras_fit import compiled_model, messages
from tfdist.training import api as trainer

_PLAIN = bool | int | float | str | None | tuple
# Attributes that Keras changes itself.
_OF_KERAS = {"built", "stop_training", "compiled", "loss", "loss_weights", "optimizer", "train_function"}
_MAX_NAMED = 3

# (id of an object, name of its attribute) -> the object, and the value.
_Values = dict[tuple[int, str], tuple[Any, Any]]


@dataclasses.dataclass(slots=True)
class Traced:
    """The values with which the step of a compiled model is traced, and those at the end of the last `fit`."""

    values: _Values
    last: _Values


def of_model(model: keras.Model) -> Traced:
    """Returns the values that a model, its layers, optimizer, losses and metrics have now."""
    values = _read(model)
    return Traced(values, values)


@contextlib.contextmanager
def as_traced(model: keras.Model, traced: Traced) -> Iterator[None]:
    """In the block, attributes have the values with which the step is traced, and afterwards those of before."""
    changed = {} if model.run_eagerly else _changed(traced.values)
    now = {key: (one, _value(one, key[1])) for key, (one, _) in changed.items()}
    _write(changed)
    try:
        yield
    finally:
        _write(now)


@contextlib.contextmanager
def put_back(model: keras.Model) -> Iterator[None]:
    """Gives attributes back what they had before the block, which traces a step without effect; also lists.

    Not to layers that are built in it, which keep what `build` sets.
    """
    built = {id(one) for one in _objects(model) if getattr(one, "built", True) or one is model}
    before, lists = {key: value for key, value in _read(model).items() if key[0] in built}, _lists(model)
    try:
        yield
    finally:
        _write({key: (one, was) for key, (one, was) in _changed(before).items() if _may_be_of_step(one, key[1], was)})
        for (of, name), (one, _) in _read(model).items():
            if of in built and (of, name) not in before and name in vars(type(one)):  # As the class has it.
                vars(one).pop(name)
        for held, items in lists:
            if not any(isinstance(one, keras.layers.Layer | keras.Variable | tf.Variable) for one in held):
                held[:] = items


def tell_of_changes(model: keras.Model, traced: Traced) -> None:
    """Says which values have changed since the end of the last `fit`, without effect."""
    last, then = _changed(traced.last), _changed(traced.values)
    names = [
        f"{getattr(one, 'name', type(one).__name__)}.{name.removeprefix('_')} = {_value(one, name)!r} "
        f"(traced: {traced.values[of, name][1]!r})"
        for (of, name), (one, _) in last.items()
        if (of, name) in then
    ]
    if names and not model.run_eagerly:
        messages.say_once(
            f"{text.list_names(names, _MAX_NAMED)}: as in Keras, this has no effect until the next model.compile(...), "
            "for which the step is traced again."
        )


def note_end(model: keras.Model, traced: Traced) -> None:
    """Notes the values at the end of a `fit`."""
    traced.last = _read(model)


def _objects(model: keras.Model) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    inner = (
        [one for one in vars(optimizer).values() if isinstance(one, keras.optimizers.Optimizer)] if optimizer else []
    )
    parts = [*trainer.layers_of_all_depths(model), optimizer, *inner, *compiled_model.compile_losses(model)]
    return [one for one in (*parts, *model.metrics) if hasattr(one, "__dict__")]


def _read(model: keras.Model) -> _Values:
    found: _Values = {}
    for one in _objects(model):
        for name, value in vars(one).items():
            is_own = name == "_trainable" or not (name.startswith("_") or name in _OF_KERAS)
            if is_own and isinstance(value, _PLAIN):
                found[id(one), name] = one, value
    return found


def _value(one: Any, name: str) -> Any:
    return vars(one).get(name)


def _changed(values: _Values) -> _Values:
    """Returns those of `values` that objects of the model do not have now."""
    return {
        (of, name): (one, value)
        for (of, name), (one, value) in values.items()
        if (now := _value(one, name)) is not value and (type(now) is not type(value) or now != value)
    }


def _may_be_of_step(one: Any, name: str, was: Any) -> bool:
    """Returns whether a step, and not the `build` of a model, has changed a value: to another number, or a tensor."""
    return type(_value(one, name)) is type(was) or isinstance(_value(one, name), tf.Tensor)


def _write(values: _Values) -> None:
    for (_, name), (one, value) in values.items():
        patching.put(one, name.removeprefix("_"), value)


def _lists(model: keras.Model) -> list[tuple[list, list]]:
    lists = [value for one in _objects(model) for name, value in vars(one).items() if not name.startswith("_")]
    return [(value, list(value)) for value in lists if isinstance(value, list)]
