"""Numbers, strings and collections of them in attributes and globals, which a step reads when it is traced.

Keras traces a step once after each `compile`. If the script later changes a value, such as a dropout rate, a momentum
or `trainable`, this has no effect until the next `compile`. tfdist traces the step in each `fit`, but with the values
of the first trace. For data of another spec Keras traces again, with the current values; tfdist keeps the old ones, and
logs which have changed.
"""

import contextlib
import functools
import inspect
import reprlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.config import patching, text, user_code
from tfdist.keras_fit import compiled_model, messages
from tfdist.training import api as trainer

_PLAIN = bool | int | float | str | None | np.generic
# Attributes that Keras changes itself.
_OF_KERAS = {"built", "stop_training", "compiled", "loss", "loss_weights", "optimizer"}
_OF_KERAS |= {"train_function", "test_function", "predict_function"}
# Private attributes of Keras that a step reads.
_READ = {"_trainable", "_fn_kwargs"}
_MAX_NAMED = 3
# Maximum number of values in a list or an array that is compared.
_MAX_VALUES = 1000

_is_users = functools.lru_cache(10_000)(user_code.defines)

# (id of an object, or of a module's globals, name of its attribute) -> the object, and the value.
_Values = dict[tuple[int, str], tuple[Any, Any]]


class TracedValues:
    """The values with which the steps of a compiled model are traced, and those at the end of the last `fit`."""

    def __init__(self, model: keras.Model):
        self._model, self._last, self._optimizer = model, _read(model), None
        # By the kind of the step: "train", "test" or "predict".
        self._values: dict[str, _Values] = {}

    def log_changes(self, kind: str) -> None:
        """Logs which values have changed since the end of the last `fit`, but have no effect on the step of this kind.

        Raises:
            ValueError: `model.optimizer` was replaced, and the step trains.
        """
        model = self._model
        self._optimizer = self._optimizer or getattr(model, "optimizer", None)
        if kind == "train" and model.optimizer is not self._optimizer:
            raise ValueError(
                f"model.optimizer was set to {type(model.optimizer).__name__} after a call of fit, which as in Keras "
                "has no effect: call model.compile(optimizer=...)."
            )
        last, then = _changed(self._last), _changed(self._values.get(kind, {}))
        names = []
        for key, (one, _) in last.items():
            if key in then:
                name, traced = key[1], _shown(then[key][1])
                names.append(f"{_owner(one)}{name.removeprefix('_')} = {_shown(_value(one, name))} (traced: {traced})")
        if names:
            messages.log_once(
                f"{text.list_names(names, _MAX_NAMED)}: as in Keras, this has no effect until the next "
                "model.compile(...), after which the step is traced again."
            )

    def note_end(self, *kinds: str) -> None:
        """Notes the values at the end of a `fit` with steps of these kinds, even if an earlier start made the steps."""
        self._last = _read(self._model)
        for kind in kinds:
            self._values.setdefault(kind, self._last)

    @contextlib.contextmanager
    def as_traced(self, *kinds: str, traces_now: bool = False) -> Iterator[None]:
        """Sets attributes to the values with which steps are traced, and restores them after the block.

        Args:
            traces_now: whether the block traces the steps. For kinds not traced before, the current values are then
                kept.
        """
        for kind in kinds if traces_now else ():
            self._values.setdefault(kind, _read(self._model))
        kept = [self._values.get(kind, {}) for kind in kinds]
        changed = {key: value for values in kept for key, value in _changed(values).items()}
        if any(name == "_trainable" for _, name in changed):
            # Setting `trainable` of a layer sets that of the layers in it: all are set, the outer layers first.
            changed |= {key: value for values in kept for key, value in values.items() if key[1] == "_trainable"}
        now = {key: (one, _value(one, key[1])) for key, (one, _) in changed.items()}
        objects = [(one, name) for (_, name), (one, _) in changed.items() if not isinstance(one, dict)]
        of_class = [(one, name) for one, name in objects if name not in vars(one)]
        _write(changed)
        try:
            yield
        finally:
            _write(now)
            for one, name in of_class:
                vars(one).pop(name, None)

    def run_steps(self, traced: set[str], kind: str, run_steps: Any, *args: Any) -> Any:
        """Calls a function that runs "train" or "test" steps; its first call in a run traces it with the kept values.

        Args:
            traced: the kinds that were called before in this run.
        """
        if kind not in traced:
            traced.add(kind)
            with self.as_traced(kind, traces_now=True):
                run_steps.get_concrete_function(*args)
        return run_steps(*args)


def trace_without_effect(model: keras.Model, function: Callable[[Any], Any], element_spec: Any) -> None:
    """Traces a function of a batch with `element_spec`, nested tf.TensorSpec [batch, ...]; variables keep their values.

    Does not use Keras' symbolic tensors, which cannot be ragged or sparse.
    """
    with restore_values(model), keras.StatelessScope(collect_losses=True), keras.SymbolicScope():
        tf.function(function, autograph=False).get_concrete_function(element_spec)


@contextlib.contextmanager
def restore_values(model: keras.Model) -> Iterator[None]:
    """Restores attributes and lists after the block, which traces a step without effect.

    Layers that the block builds keep the attributes that `build` sets.
    """
    unbuilt = {id(one) for one, _ in _walk(model) if not getattr(one, "built", True) and one is not model}
    before = {key: value for key, value in _read(model).items() if key[0] not in unbuilt}
    attributes = [one for _, values in _walk(model) for name, one in values.items() if not name.startswith("_")]
    lists = [(one, list(one)) for one in attributes if isinstance(one, list)]
    try:
        yield
    finally:
        _write({key: (one, was) for key, (one, was) in _changed(before).items() if _may_be_of_step(one, key[1], was)})
        for held, items in lists:
            if not any(isinstance(one, keras.layers.Layer | keras.Variable | tf.Variable) for one in held):
                held[:] = items


def _shown(value: Any) -> str:
    return reprlib.repr(value.numpy().ravel().round(3).tolist() if isinstance(value, tf.Tensor) else value)


def _owner(one: Any) -> str:
    return "" if isinstance(one, dict) else f"{getattr(one, 'name', type(one).__name__)}."


def _walk(model: keras.Model) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields objects with their attributes: a model, its layers, optimizers, losses, metrics; user's objects in these.

    For a user's function, yields the globals of its module, with those globals that the function names.
    """
    optimizer = getattr(model, "optimizer", None)
    waiting = [*trainer.layers_of_all_depths(model), optimizer, *(vars(optimizer).values() if optimizer else ())]
    waiting = [one for one in waiting if isinstance(one, keras.layers.Layer | keras.optimizers.Optimizer)]
    waiting += [*compiled_model.compile_losses(model), *model.metrics]
    seen: dict[int, Any] = {}
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen or not hasattr(one, "__dict__"):
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType):
            values, around = {}, {}
            with contextlib.suppress(ValueError):  # A closure variable has no value yet.
                used = inspect.getclosurevars(one)
                values, around = dict(used.globals), used.nonlocals
            yield one.__globals__, values
            parts = [*values.values(), *around.values()]
        else:
            kinds = [kind for kind in reversed(type(one).__mro__) if _is_users(kind)]
            values = {name: value for kind in kinds for name, value in vars(kind).items()} | vars(one)
            yield one, values
            parts = list(values.values())
        waiting += [one for one in parts if _is_users(one if isinstance(one, types.FunctionType) else type(one))]


def _read(model: keras.Model) -> _Values:
    return {
        (id(one), name): (one, _copy(value))
        for one, values in _walk(model)
        for name, value in values.items()
        if (name in _names_in_code(type(one)) or not (name.startswith("_") or name in _OF_KERAS)) and _is_plain(value)
    }


@functools.lru_cache(1000)
def _names_in_code(kind: type) -> frozenset[str]:
    """Returns the names in the methods of a user's class, and `_READ`: a step may read such private attributes."""
    methods = [one for base in kind.__mro__ if _is_users(base) for one in vars(base).values()]
    used = [one.__code__.co_names for one in methods if isinstance(one, types.FunctionType)]
    return frozenset(_READ.union(*used)) - _OF_KERAS


def _value(one: Any, name: str) -> Any:
    """Returns an attribute of `one`; or a global variable, if `one` is the dict of a module's globals."""
    return one.get(name) if isinstance(one, dict) else vars(one).get(name, getattr(type(one), name, None))


def _is_plain(value: Any) -> bool:
    parts = keras.tree.flatten(value) if isinstance(value, list | tuple | dict) else [value]
    return len(parts) <= _MAX_VALUES and all(isinstance(one, _PLAIN) or _is_small_array(one) for one in parts)


def _is_small_array(value: Any) -> bool:
    """Returns whether a value is an array, or a tensor outside of graphs, such as the mean of a `Normalization`."""
    if isinstance(value, tf.Tensor):
        return not tf.is_symbolic_tensor(value) and value.shape.num_elements() <= _MAX_VALUES
    return isinstance(value, np.ndarray) and value.size <= _MAX_VALUES


def _copy(value: Any) -> Any:
    """Returns a copy that stays the same when the script modifies a list, dict or array."""
    return keras.tree.map_structure(lambda one: one.copy() if isinstance(one, np.ndarray) else one, value)


def _changed(values: _Values) -> _Values:
    """Returns those of `values` that differ from the current values."""
    return {
        (owner_id, name): (one, value)
        for (owner_id, name), (one, value) in values.items()
        if (now := _value(one, name)) is not value and repr(now) != repr(value)
    }


def _may_be_of_step(one: Any, name: str, was: Any) -> bool:
    """Returns whether a step, and not the `build` of a model, has changed a value: to another number, or a tensor."""
    now = _value(one, name)  # Lists are restored in place, because other objects may hold them.
    return (type(now) is type(was) and not isinstance(was, list | dict | np.ndarray)) or isinstance(now, tf.Tensor)


def _write(values: _Values) -> None:
    for (_, name), (one, value) in values.items():
        if isinstance(one, dict):
            one[name] = value
        else:
            patching.replace_attribute(one, "trainable" if name == "_trainable" else name, value)
