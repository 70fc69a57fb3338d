"""Saves and restores the state of callbacks, so that a resumed run makes the decisions of an uninterrupted one.

A checkpoint holds what a callback's `get_state()` returns, for `set_state(state)`. For a callback without these
methods, it holds the attributes of the callback and of its class that have changed since `on_train_begin`. The others
are settings, which may differ between starts. Values may be numbers, strings, arrays, lists, tuples, deques and dicts
of these, and objects with `get_state` and `set_state` or `getstate` and `setstate`, such as random generators.
Variables that callbacks refer to are saved by their names.
"""

import collections
import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import os
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.config import user_code

# Not state: set by Keras, or derived by MonitorCallback (restoring min_delta would flip its sign).
_NOT_STATE = {"model", "_model", "params", "_params", "monitor_op", "min_delta"}
# Types that are not reported as unsaved: they have no state, or it is saved elsewhere. Callables, such as models and
# functions, are not reported either.
_NOT_NAMED = (keras.Variable, tf.Variable, keras.optimizers.Optimizer, keras.random.SeedGenerator, tf.data.Dataset)
# Larger lists and dicts are not saved: comparing them would take seconds at each save.
_MAX_ELEMENTS = 100_000
_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, collections.deque)}
# A container counts as data, without variables, if its first `_NUM_SAMPLED` elements are of the types `_DATA`.
_NUM_SAMPLED = 100
_DATA = (int, float, complex, str, bytes, np.generic)


@dataclasses.dataclass(frozen=True)
class _State:
    """What an object's `get_state` returned, for its `set_state`."""

    state: Any


class CallbackState:
    """The state of the callbacks of a worker.

    Args:
        callbacks: the same classes in the same order at each start.
        model: the variables in its attributes are saved, too.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback], model: keras.Model):
        self._callbacks = by_name(callbacks)
        found = _referenced_variables(callbacks, model)
        numeric = [one for one in found if keras.backend.standardize_dtype(one.dtype) != "string"]
        # The variables that callbacks refer to, by their names in checkpoints.
        self.variables = checkpoint_format.unique_names(f"{checkpoint_format.CALLBACKS}variables", numeric)
        # Fingerprints at `begin`: of attributes, by callback and attribute; of variables, by "" and name.
        self._initial: dict[str, dict[str, str | None]] = {}

    def begin(self) -> None:
        """Notes the state after `on_train_begin`."""
        self._initial = {
            name: {attribute: _fingerprint(value) for attribute, value in _attributes(callback)}
            for name, callback in self._callbacks.items()
        }
        self._initial[""] = {name: _fingerprint(_value(one)) for name, one in self.variables.items()}

    def save(self, known: set[int]) -> tuple[dict[str, Any], dict[str, np.ndarray], list[str]]:
        """Returns what has changed since `begin`.

        Args:
            known: ids of variables that the checkpoint holds elsewhere.

        Returns:
            JSON values by callback; copies of arrays by name; and the attributes of users' callbacks that cannot be
            saved, whether they have changed or not.
        """
        state: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        unsaved = []
        for name, callback in self._callbacks.items():
            entry = state[name] = {"attributes": {}}
            for attribute, value in _attributes(callback):
                now = _fingerprint(value)
                if now is not None and now != self._initial[name].get(attribute, ""):
                    path = f"{checkpoint_format.CALLBACKS}{name}/{attribute}"
                    entry["attributes"][attribute] = _encode(value, path, arrays)
                named = user_code.defines(type(callback)) and not (callable(value) or isinstance(value, _NOT_NAMED))
                if now is None and named:
                    unsaved.append(f"{name}.{attribute} ({type(value).__name__})")
            if isinstance(callback, keras.callbacks.CSVLogger) and os.path.exists(callback.filename):
                entry["bytes"] = os.path.getsize(callback.filename)
        for name, variable in self.variables.items():
            if id(variable) not in known and _fingerprint(value := _value(variable)) != self._initial[""][name]:
                arrays[name] = value
        # In this machine's byte order: dtype names have none.
        arrays = {name: np.array(each, each.dtype.newbyteorder("=")) for name, each in arrays.items()}
        return state, arrays, unsaved

    def restore(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[str]:
        """Restores what `save` returned, on every worker; returns the names of what starts from scratch."""
        new = [name for name in self._callbacks if name not in state]
        for name in state.keys() & self._callbacks.keys():
            for attribute, value in state[name]["attributes"].items():
                try:
                    _assign(self._callbacks[name], attribute, _decode(value, arrays))
                except (AttributeError, KeyError, TypeError):  # From another release, or now of another type.
                    new.append(f"{name}.{attribute}")
        for name in (one for one in arrays if one.startswith(f"{checkpoint_format.CALLBACKS}variables/")):
            if name in self.variables:
                checkpoint_format.tf_variable(self.variables[name]).assign(arrays[name])
            else:
                new.append(name.removeprefix(checkpoint_format.CALLBACKS))
        return new


def by_name(callbacks: list[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Returns the callbacks by class name; the second of a class has the suffix "#2"."""
    found: dict[str, keras.callbacks.Callback] = {}
    for callback in callbacks:
        name, count = type(callback).__name__, 2
        while name in found:
            name, count = f"{type(callback).__name__}#{count}", count + 1
        found[name] = callback
    return found


def rewind_files(callbacks: list[keras.callbacks.Callback], state: dict[str, Any], ended: bool) -> None:
    """Truncates the file of each CSVLogger to its size at the checkpoint; called before `on_train_begin`.

    If the training had `ended`, later trainings wrote the rest of the file, which is kept.
    """
    for name, callback in by_name(callbacks).items():
        size = state.get(name, {}).get("bytes")
        if size is not None:
            callback.append = True
            if not ended and os.path.exists(callback.filename) and os.path.getsize(callback.filename) > size:
                os.truncate(callback.filename, size)


def encode_draws(arrays: dict[str, np.ndarray]) -> Any:
    """Returns the states of the global random generators as a JSON value, and adds its arrays to `arrays`."""
    states = [random.getstate(), np.random.get_state(legacy=False)]
    return _encode(states, f"{checkpoint_format.CALLBACKS}draws", arrays)


def restore_draws(saved: Any, arrays: dict[str, np.ndarray]) -> None:
    """Inverts `encode_draws`."""
    of_python, of_numpy = _decode(saved, arrays)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _referenced_variables(callbacks: list[keras.callbacks.Callback], model: keras.Model) -> list[Any]:
    """Returns the variables in attributes of callbacks and `model`, and in closures and globals that callbacks use.

    Lists, tuples and dicts are searched, and the attributes of models, layers, losses and metrics.
    """
    waiting: list[Any] = [model] if callbacks else []
    for callback in callbacks:
        attributes = list(vars(callback).values())
        of_users = [vars(kind).values() for kind in type(callback).__mro__ if user_code.defines(kind)]
        waiting += attributes
        for function in filter(inspect.isfunction, itertools.chain(attributes, *of_users)):
            with contextlib.suppress(ValueError):  # A name of a closure that has no value yet.
                used = inspect.getclosurevars(function)
                waiting += [*used.nonlocals.values(), *used.globals.values()]
    found, seen = [], set()
    for value in waiting:  # The loop also visits what it appends.
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Variable | tf.Variable):
            # Sums over replicas, such as a metric's, can only be read by all workers together.
            if checkpoint_format.tf_variable(value).synchronization != tf.VariableSynchronization.ON_READ:
                found.append(value)
        elif isinstance(value, list | tuple | dict):
            held = value.values() if isinstance(value, dict) else value
            # Skip data, which may have millions of elements: it begins with numbers or strings.
            if not all(isinstance(one, _DATA) for one in itertools.islice(held, _NUM_SAMPLED)):
                waiting.extend(held)
        elif isinstance(value, keras.Layer | keras.Loss | keras.Metric | keras.random.SeedGenerator):
            waiting.extend(vars(value).values())
    return found


def _value(variable: Any) -> np.ndarray:
    (array,) = checkpoint_format.snapshot({"": variable}).values()
    return array


def _holders(callback: keras.callbacks.Callback) -> dict[str, Any]:
    return {"": callback} | {kind.__name__: kind for kind in filter(user_code.defines, type(callback).__mro__)}


def _attributes(callback: keras.callbacks.Callback) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a callback, and those of users' classes with names such as "Mine:count".

    Objects with functions for their state, perhaps the callback itself, are replaced by a `_State`.
    """
    if (methods := _state_methods(callback)) is not None:
        yield "", _State(methods[0]())
        return
    for kind, holder in _holders(callback).items():
        for name, value in vars(holder).items():
            of_class = name.startswith("__") or callable(value) or hasattr(value, "__get__")
            if not (of_class if kind else name in _NOT_STATE):
                methods = _state_methods(value)
                yield f"{kind}:{name}" if kind else name, value if methods is None else _State(methods[0]())


def _state_methods(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    if isinstance(value, np.random.Generator):
        return lambda: value.bit_generator.state, functools.partial(setattr, value.bit_generator, "state")
    for get, put in (("get_state", "set_state"), ("getstate", "setstate")):
        if hasattr(type(value), get) and hasattr(type(value), put):
            return getattr(value, get), getattr(value, put)
    return None


def _assign(callback: keras.callbacks.Callback, attribute: str, value: Any) -> None:
    """Sets an attribute; a list, deque, dict or array is changed in place, because the script may refer to it, too."""
    kind, _, name = attribute.rpartition(":")
    holder = _holders(callback).get(kind, callback)
    present = vars(holder).get(name) if name else callback
    if isinstance(value, _State):
        _state_methods(present)[1](value.state)
    elif isinstance(present, dict) and isinstance(value, dict):  # Also a defaultdict.
        present.clear()
        present.update(value)
    elif isinstance(present, list | collections.deque) and type(present) is type(value):
        present.clear()
        present.extend(value)  # A deque keeps its `maxlen`.
    elif isinstance(present, np.ndarray) and isinstance(value, np.ndarray) and present.shape == value.shape:
        present[...] = value
    else:
        setattr(holder, name, value)


def _fingerprint(value: Any) -> str | None:
    """Returns equal strings for equal values; None if a checkpoint cannot hold the value."""
    arrays: dict[str, Any] = {}
    try:
        encoded = _encode(value, "", arrays)
    except (TypeError, RecursionError):
        return None
    return json.dumps([encoded, [[one.shape, one.dtype.name, zlib.crc32(one.tobytes())] for one in arrays.values()]])


def _encode(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Returns JSON for `value`; adds its arrays to `arrays`, under `name` and their path in the value.

    Raises:
        TypeError: a checkpoint cannot hold it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, _State):
        return {"state": _encode(value.state, name, arrays)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": [value.dtype.name, value.item()]}
    # Symbolic tensors have no value.
    array = np.asarray(value) if isinstance(value, tf.Tensor) and hasattr(value, "numpy") else value
    # Not subclasses, such as masked arrays, and not structured dtypes: checkpoints hold only numbers.
    if type(array) is np.ndarray and (array.dtype.kind in "biufc" or hasattr(ml_dtypes, array.dtype.name)):
        arrays[name] = array
        return {"array": name}
    if type(value) in _SEQUENCES.values() and len(value) <= _MAX_ELEMENTS:
        items = [_encode(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, dict) and len(value) <= _MAX_ELEMENTS:
        values = [_encode(one, f"{name}/{index}", arrays) for index, one in enumerate(value.values())]
        return {"dict": [[_encode(key, "", {}), one] for key, one in zip(value, values, strict=True)]}
    raise TypeError(type(value))


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Inverts `_encode`; tensors become arrays."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return np.dtype(content[0]).type(content[1])
    if kind == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in content}
    if kind == "state":
        return _State(_decode(content, arrays))
    return _SEQUENCES[kind](_decode(item, arrays) for item in content)
