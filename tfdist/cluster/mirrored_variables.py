"""Methods of `tf.Variable` that mirrored variables lack, for the code of callbacks and steps."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import values

from tfdist.config import patching

_SCATTER = ("add", "max", "min", "sub", "update")


def add_methods() -> None:
    """Adds `float(variable)`, `int(variable)`, `variable[...].assign(...)`, and methods such as `scatter_nd_update`.

    In `strategy.run`, all replicas must call them with equal values, as for `assign`.
    """
    kind = values.MirroredVariable
    methods: dict[str, Callable[..., Any]] = {
        "__float__": lambda variable: float(variable.numpy()),
        "__int__": lambda variable: int(variable.numpy()),
        "__getitem__": _part,
        **{f"scatter_nd_{name}": _scatter(getattr(tf, f"tensor_scatter_nd_{name}")) for name in _SCATTER},
    }
    for name, method in methods.items():
        patching.replace_attribute(kind, name, method)


def _scatter(function: Callable[..., tf.Tensor]) -> Callable[..., Any]:
    def scatter(variable: tf.Variable, indices: Any, updates: Any, name: str | None = None) -> Any:
        return variable.assign(function(variable, indices, tf.convert_to_tensor(updates, variable.dtype)))

    return scatter


def _part(variable: tf.Variable, key: Any) -> tf.Tensor:
    """Returns `variable[key]`, a tensor to which a method `assign` is added."""
    part = tf.convert_to_tensor(variable)[key]
    part.assign = functools.partial(_assign_part, variable, key)
    return part


def _assign_part(variable: tf.Variable, key: Any, value: Any, name: str | None = None) -> Any:
    shape = tf.shape(variable)
    places = tf.reshape(tf.range(tf.reduce_prod(shape)), shape)[key]
    value = tf.broadcast_to(tf.convert_to_tensor(value, variable.dtype), tf.shape(places))
    numbers = tf.reshape(tf.convert_to_tensor(variable), [-1])
    numbers = tf.tensor_scatter_nd_update(numbers, tf.reshape(places, [-1, 1]), tf.reshape(value, [-1]))
    return variable.assign(tf.reshape(numbers, shape))
