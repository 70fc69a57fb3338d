"""Saves and restores the state of Keras callbacks, so that a resumed run makes the decisions of an uninterrupted one.

A checkpoint holds the attributes of each callback that have changed since `on_train_begin`: numbers, strings, NumPy
arrays and tensors, random generators of NumPy and Python, and lists, tuples and dicts of them. Settings can therefore
be changed between starts, and data that a callback only refers to is not copied. Long lists of numbers, which a History
has after many epochs, are saved as arrays. Variables that callbacks refer to are saved by their names, if they have
changed. Open files, functions, models and locks are not saved. With a script, the global random generators may be.
"""

import collections
import dataclasses
import hashlib
import io
import json
import math
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.config import user_code
from tfdist.report import files

# A file of the workdir; see `begin_files`.
BEGUN = "begun.json"
# Larger arrays are compared by identity: unchanged if it is the same object.
_LARGEST_COMPARED_BYTES = 2**20
# Attributes with more elements are not saved: to compare them would take seconds in each save.
_MOST_PARTS = 100_000
# Lists of numbers of at least this length are saved as arrays: the History of 20,000 epochs is 1.6 MB of JSON.
_LONG_LIST = 100
# End of the names of these arrays.
_LIST = "/list"
# Not saved: set by Keras, or derived by MonitorCallback (restoring min_delta would flip its sign).
_NOT_STATE = {"model", "_model", "params", "_params", "monitor_op", "min_delta"}

# By name, not by lookup: a checkpoint must not choose what is called.
_BIT_GENERATORS = {kind.__name__: kind for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937)}
_BIT_GENERATORS |= {kind.__name__: kind for kind in (np.random.Philox, np.random.SFC64)}

# Callback -> attribute -> (fingerprint, the object itself: a reference keeps its id unique).
InitialState = dict[str, dict[str, tuple[str | None, Any]]]


class _NotSerializable(TypeError):
    """A value that a checkpoint cannot hold."""


def by_name(callbacks: list[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Returns the callbacks by class name; the second of a class has the suffix "#2"."""
    found: dict[str, keras.callbacks.Callback] = {}
    for callback in callbacks:
        name, count = type(callback).__name__, 2
        while name in found:
            name, count = f"{type(callback).__name__}#{count}", count + 1
        found[name] = callback
    return found


def initial_state(callbacks: list[keras.callbacks.Callback]) -> InitialState:
    """Returns fingerprints of the callbacks' attributes; called after `on_train_begin`."""
    return {
        name: {attribute: (_fingerprint(value), value) for attribute, value in _attributes(callback)}
        for name, callback in by_name(callbacks).items()
    }


def plain_attributes(callbacks: list[keras.callbacks.Callback], skip: Callable[[Any], bool]) -> dict[str, str]:
    """Returns texts that are equal for equal attributes, by names such as "EarlyStopping.wait", in every process.

    Attributes that a checkpoint cannot hold are not among them, nor large arrays, nor values for which `skip` is true.
    """
    found = {}
    for name, callback in by_name(callbacks).items():
        for attribute, value in _attributes(callback):
            arrays: dict[str, Any] = {}
            try:
                text = "" if skip(value) else json.dumps(_encode(value, "", arrays, copied=False))
            except _NotSerializable:
                continue
            if all(np.asarray(one).nbytes <= _LARGEST_COMPARED_BYTES for one in arrays.values()):
                found[f"{name}.{attribute}"] = " ".join([text, *map(_fingerprint_of_array, arrays.values())])
    return found


def snapshot(
    callbacks: list[keras.callbacks.Callback],
    before: InitialState,
    unsaved: Callable[[str, str, Any], None],
    largest_bytes: float = math.inf,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns what has changed since `before`.

    Args:
        callbacks: of one worker; the same classes in the same order at each start.
        before: what `initial_state` returned.
        unsaved: called with a callback's name, an attribute and its value if it has changed and cannot be saved, or if
            it has too many elements.
        largest_bytes: attributes whose arrays, without those of lists, have more bytes in total are skipped.

    Returns:
        JSON values by callback, and copies of the arrays by name.
    """
    state: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, callback in by_name(callbacks).items():
        saved, in_place = {}, []
        for attribute, value in _attributes(callback):
            fingerprint, initial = before[name].get(attribute, ("", None))
            if (now := _fingerprint(value)) is None:
                unsaved(name, attribute, value)
            if now in (None, fingerprint):
                continue
            in_place += [attribute] if initial is value else []
            found: dict[str, np.ndarray] = {}
            try:
                encoded = _encode(value, f"{checkpoint_format.CALLBACKS}{name}/{attribute}", found)
            except _NotSerializable:
                unsaved(name, attribute, value)
                continue
            if sum(array.nbytes for key, array in found.items() if not key.endswith(_LIST)) <= largest_bytes:
                saved[attribute] = encoded
                arrays |= found
        entry: dict[str, Any] = {"attributes": saved, "in_place": in_place}
        if isinstance(callback, keras.callbacks.CSVLogger) and os.path.exists(callback.filename):
            entry["bytes"] = os.path.getsize(callback.filename)
        state[name] = entry
    return state, arrays


def begin_files(
    callbacks: list[keras.callbacks.Callback], saved: dict[str, Any] | None, ended: bool, workdir: Path
) -> None:
    """Gives the files of CSVLoggers their sizes at the checkpoint; arguments as for `CallbackRunner.train_begin`.

    Before the first step of a run, the sizes of those which append are noted in the workdir. After a start that was
    interrupted before the first checkpoint they get these again.
    """
    if saved:
        rewind_files(callbacks, saved["callbacks"], ended or saved["stop"])
        (workdir / BEGUN).unlink(missing_ok=True)
        return
    named = by_name(callbacks).items()
    logs = {name: one.filename for name, one in named if isinstance(one, keras.callbacks.CSVLogger) and one.append}
    sizes = {name: {"bytes": os.path.getsize(file) if os.path.exists(file) else 0} for name, file in logs.items()}
    noted = files.read_json(workdir / BEGUN)
    if noted is not None:
        rewind_files(callbacks, {name: noted[name] for name in logs if name in noted})
    elif sizes:
        files.write_json(str(workdir / BEGUN), sizes)


def rewind_files(callbacks: list[keras.callbacks.Callback], state: dict[str, Any], ended: bool = False) -> None:
    """Truncates the file of each CSVLogger to its size at the checkpoint; called before `on_train_begin`.

    If the training had `ended`, later trainings have written the rest of the file: it stays.
    """
    for name, callback in by_name(callbacks).items():
        size = state.get(name, {}).get("bytes")
        if size is not None:
            callback.append = True
            if not ended and os.path.exists(callback.filename) and os.path.getsize(callback.filename) > size:
                os.truncate(callback.filename, size)


def restore(
    callbacks: list[keras.callbacks.Callback], state: dict[str, Any], arrays: dict[str, np.ndarray]
) -> list[str]:
    """Restores what `snapshot` returned; returns the names of callbacks that are not in `state`."""
    unknown = []
    for name, callback in by_name(callbacks).items():
        if name not in state:
            unknown.append(name)
            continue
        for attribute, value in state[name]["attributes"].items():
            _assign(callback, attribute, _decode(value, arrays), attribute in state[name].get("in_place", ()))
    return unknown


def _assign(callback: keras.callbacks.Callback, attribute: str, value: Any, in_place: bool) -> None:
    """Sets an attribute; changes a list, dict or array `in_place` that the script may have as well."""
    kind, _, name = attribute.rpartition(":")
    holder = _holders(callback).get(kind, callback)
    present = getattr(holder, name, None)
    if isinstance(present, dict) and (in_place or type(present) is not dict):  # Also a defaultdict or an OrderedDict.
        present.clear()
        present.update(value)
    elif in_place and type(present) is type(value) is list:
        present[:] = value
    elif (
        in_place
        and isinstance(present, np.ndarray)
        and (present.shape, present.dtype.name) == (value.shape, value.dtype.name)
    ):
        present[...] = value
    else:
        setattr(holder, name, value)


def add_draws(arrays: dict[str, np.ndarray]) -> Any:
    """Returns the states of the global random generators as a JSON value, and adds its arrays to `arrays`."""
    states = [random.getstate(), np.random.get_state(legacy=False)]
    return _encode(states, f"{checkpoint_format.CALLBACKS}draws", arrays)


def restore_draws(saved: Any, arrays: dict[str, np.ndarray]) -> None:
    """Inverts `add_draws`; None changes nothing."""
    if saved is not None:
        of_python, of_numpy = _decode(saved, arrays)
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def named_variables(variables: list[Any]) -> dict[str, Any]:
    """Returns numeric variables by the names that they have in checkpoints."""
    numeric = [one for one in variables if keras.backend.standardize_dtype(one.dtype) != "string"]
    return checkpoint_format.unique_names(f"{checkpoint_format.CALLBACKS}variables", numeric)


@dataclasses.dataclass(slots=True)
class WatchedVariables:
    """Variables by their names in checkpoints, and hashes of the values that they had at the last `note`."""

    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    noted: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def note(self) -> None:
        """Notes the present values."""
        self.noted = self._hashes()

    def changed_values(self) -> dict[str, np.ndarray]:
        """Returns copies of the values that are no longer those that were noted."""
        now = self._hashes() if self.noted else {}
        return {name: _value(self.variables[name]) for name, found in now.items() if found != self.noted[name]}

    def _hashes(self) -> dict[str, bytes]:
        return {name: hashlib.sha256(_value(one).tobytes()).digest() for name, one in self.variables.items()}


def restore_variables(variables: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[str]:
    """Assigns the result of `WatchedVariables.changed_values`; returns names in `arrays` that `variables` lacks."""
    saved = [name for name in arrays if name.startswith(f"{checkpoint_format.CALLBACKS}variables/")]
    for name in saved:
        if name in variables:
            checkpoint_format.tf_variable(variables[name]).assign(arrays[name])
    return [name for name in saved if name not in variables]


def _value(variable: Any) -> np.ndarray:
    (array,) = checkpoint_format.snapshot({"": variable}).values()
    return array


def _attributes(callback: keras.callbacks.Callback) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a callback, and those of users' classes under names such as "Mine:count"."""
    for kind, holder in _holders(callback).items():
        for name, value in vars(holder).items():
            of_class = name.startswith("__") or callable(value) or hasattr(value, "__get__")
            if not (of_class if kind else name in _NOT_STATE):
                yield f"{kind}:{name}" if kind else name, value


def _holders(callback: keras.callbacks.Callback) -> dict[str, Any]:
    return {"": callback} | {kind.__name__: kind for kind in filter(user_code.defines, type(callback).__mro__)}


def find_opaque(callbacks: list[keras.callbacks.Callback]) -> Iterator[tuple[str, str, Any]]:
    """Yields name, attribute and value of what may change without a trace, such as an iterator or a `bytearray`."""
    looked_into = list | dict | collections.deque | np.ndarray | tf.Tensor | io.IOBase
    for name, callback in by_name(callbacks).items():
        for attribute, value in _attributes(callback):
            changes = hasattr(type(value), "__next__") or hasattr(type(value), "__setitem__")
            if changes and not isinstance(value, looked_into) and not user_code.defines(type(value)):
                yield name, attribute, value


def _fingerprint(value: Any) -> str | None:
    """Returns equal texts for equal values; None if there are too many elements."""
    texts, waiting, seen = [], [value], set()
    while waiting and len(waiting) + len(texts) <= _MOST_PARTS:
        part, arrays = waiting.pop(), {}
        parts = [] if type(part) is list and _as_array(part) is not None else _parts(part)
        try:
            whole = not (parts and isinstance(part, list | tuple | dict))
            texts.append(json.dumps(_encode(part, "", arrays, copied=False) if whole else len(parts)))
        except _NotSerializable:
            texts.append(f"object {id(part)}")
            arrays = {"": part.view(np.ndarray)} if isinstance(part, np.ndarray) else {}
        texts += [_fingerprint_of_array(array) for array in arrays.values()]
        if id(part) not in seen:
            seen.add(id(part))
            waiting += parts
    return None if waiting else " ".join(texts)


def _parts(value: Any) -> list[Any]:
    """Returns the content of containers and of objects of the user's classes; nothing for other objects."""
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return list(value)
    if not isinstance(value, dict):
        opened = user_code.defines(type(value)) or isinstance(value, np.ndarray)  # Such as a mask.
        slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__] if opened else []
        names = [name for one in slots for name in ([one] if isinstance(one, str) else one)]
        found = {name: getattr(value, name, None) for name in names}
        value = found | (getattr(value, "__dict__", {}) if opened else {})
    return [*value, *value.values()]


def _fingerprint_of_array(value: np.ndarray | tf.Tensor) -> str:
    array = np.asarray(value)
    large = array.nbytes > _LARGEST_COMPARED_BYTES
    return f"{array.shape} {array.dtype.name} {id(value) if large else zlib.crc32(array.tobytes())}"


def _encode(value: Any, name: str, arrays: dict[str, Any], copied: bool = True) -> Any:
    """Returns JSON for `value`; adds its arrays to `arrays`, under `name` and their path in the value.

    Without `copied`, for comparisons only: arrays are those of `value`, and long lists of numbers are hashed.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": [value.dtype.name, value.item()]}
    if _is_numeric_array(value):
        # In the byte order of this machine: names of dtypes have none.
        arrays[name] = np.array(value, np.asarray(value).dtype.newbyteorder("=")) if copied else value
        return {"array": name}
    if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
        return {"random": _encode(_random_state(value), name, arrays, copied)}
    if type(value) is list and (numbers := _as_array(value)) is not None:
        if copied:
            arrays[f"{name}{_LIST}"] = numbers
        return {"numbers": f"{name}{_LIST}" if copied else [len(value), zlib.crc32(numbers.tobytes())]}
    if type(value) in (list, tuple):
        items = [_encode(item, f"{name}/{index}", arrays, copied) for index, item in enumerate(value)]
        return {"tuple" if type(value) is tuple else "list": items}
    if isinstance(value, dict):
        return {
            "dict": [
                [_encode(key, "", {}), _encode(item, f"{name}/{index}", arrays, copied)]
                for index, (key, item) in enumerate(value.items())
            ]
        }
    raise _NotSerializable


def _as_array(value: list[Any]) -> np.ndarray | None:
    """Returns a long list of floats or integers as an array, whose `tolist` is the list; for other lists, None."""
    if len(value) < _LONG_LIST:
        return None
    kinds = set(map(type, value))
    if kinds == {float}:
        return np.array(value, np.float64)
    in_range = kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63
    return np.array(value, np.int64) if in_range else None


def _random_state(generator: Any) -> list[Any]:
    """Returns the kind of a random generator and its state, in values that `_encode` supports."""
    if isinstance(generator, random.Random):
        return ["random.Random", generator.getstate()]
    if isinstance(generator, np.random.RandomState):
        return ["RandomState", generator.get_state(legacy=True)]
    return ["Generator", type(generator.bit_generator).__name__, generator.bit_generator.state]


def _restore_generator(kind: str, *state: Any) -> Any:
    """Inverts `_random_state`."""
    if kind == "random.Random":
        generator = random.Random()
        generator.setstate(state[0])
        return generator
    if kind == "RandomState":
        generator = np.random.RandomState()
        generator.set_state(state[0])
        return generator
    bits = _BIT_GENERATORS[state[0]]()
    bits.state = state[1]
    return np.random.Generator(bits)


def _is_numeric_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        # Not subclasses, such as masked arrays, and not named fields: a checkpoint's format has only numbers.
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return False
        return value.dtype.kind != "V" or hasattr(ml_dtypes, value.dtype.name)
    if not isinstance(value, tf.Tensor) or not hasattr(value, "numpy"):  # Symbolic tensors have no value.
        return False
    return value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Inverts `_encode`; tensors become arrays."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "scalar":
        return np.dtype(content[0]).type(content[1])
    if kind == "array":
        return arrays[content]
    if kind == "numbers":
        return arrays[content].tolist()
    if kind == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in content}
    if kind == "random":
        return _restore_generator(*_decode(content, arrays))
    items = [_decode(item, arrays) for item in content]
    return tuple(items) if kind == "tuple" else items
