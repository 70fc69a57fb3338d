"""How callbacks run on the chief alone, and all workers follow: what they change there is carried to the others.

A callback of a user's knows nothing of workers. On the chief alone it writes its files once, and decides once. What it
does to training is carried after its hook: weights and the optimizer's variables, those variables that it or its
functions hold (what a loss is annealed by, say), the learning rate, `model.stop_training`; and when training ends, what
scripts may read of it: its attributes. A callback with the attribute `on_all_workers = True` runs everywhere.
"""

import collections
import contextlib
import inspect
import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.training.callbacks import state as state_lib

# Keras' own that are alike everywhere and change all weights, twice an epoch.
_EVERYWHERE = (keras.callbacks.SwapEMAWeights,)
# Larger arrays are not sent when training ends: copies of the weights, mostly.
_LARGEST_SENT_BYTES = 2**20


def runs_on_all_workers(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback runs on all workers, and not on the chief alone."""
    return getattr(callback, "on_all_workers", type(callback) in _EVERYWHERE)


def find_variables(callbacks: list[keras.callbacks.Callback]) -> list[Any]:
    """Returns the variables that callbacks hold: attributes, and what their functions find in closures and globals."""
    waiting: collections.deque[Any] = collections.deque()
    for callback in callbacks:
        waiting += vars(callback).values()
        functions = [value for value in vars(callback).values() if inspect.isfunction(value)]
        for kind in type(callback).__mro__:
            if not kind.__module__.startswith("keras."):
                functions += [value for value in vars(kind).values() if inspect.isfunction(value)]
        for function in functions:
            with contextlib.suppress(ValueError):  # A name of a closure that has no value yet.
                known = inspect.getclosurevars(function)
                waiting += [*known.nonlocals.values(), *known.globals.values()]
    found, seen = [], set()
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Variable | tf.Variable):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            waiting += value.values() if isinstance(value, dict) else value
    return found


class VariableBroadcast:
    """Watches variables on the chief, and carries those that have changed to all workers."""

    def __init__(self, cluster: Cluster, variables: list[Any]):
        self._variables = variables
        self._copy = cluster.make_broadcast_variables(variables)
        self._before: list[tf.Tensor] = []
        self._changed = False

    def begin(self) -> None:
        """Notes what the variables are; on the chief, before a hook."""
        self._before = self._values()

    def end(self) -> None:
        """Looks for variables that have changed; on the chief, after a hook."""
        self._changed |= bool(self._before) and bool(_differ(self._before, self._values()))
        self._before = []

    @property
    def changed(self) -> bool:
        """Whether the chief's variables have changed since they were copied."""
        return self._changed

    def copy(self) -> None:
        """Gives every worker the chief's values; all must call it."""
        self._copy()
        self._changed = False

    def _values(self) -> list[tf.Tensor]:
        values = [one.value if isinstance(one, keras.Variable) else one for one in self._variables]
        return [tf.convert_to_tensor(value) for value in values]


@tf.function(autograph=False, reduce_retracing=True)
def _differ(before: list[tf.Tensor], after: list[tf.Tensor]) -> tf.Tensor:
    pairs = zip(before, after, strict=True)
    return tf.reduce_any([tf.reduce_any(tf.not_equal(one, other)) for one, other in pairs])


def broadcast_attributes(
    cluster: Cluster, callbacks: list[keras.callbacks.Callback], before: state_lib.Baseline
) -> None:
    """Gives the other workers' callbacks what those of the chief have learned since `before`; all must call it."""
    text = b""
    if cluster.is_chief:
        state, arrays = state_lib.snapshot(callbacks, before, lambda *lost: None, _LARGEST_SENT_BYTES)
        flat = {name: [_kind(array), array.shape, array.tobytes().hex()] for name, array in arrays.items()}
        text = json.dumps([state, flat]).encode()
    text = cluster.broadcast_bytes(text)
    if cluster.is_chief:
        return
    state, flat = json.loads(text)
    arrays = {
        name: np.frombuffer(bytes.fromhex(values), np.dtype(kind)).reshape(shape).copy()
        for name, (kind, shape, values) in flat.items()
    }
    named = state_lib.named(callbacks).items()
    followers = {name for name, callback in named if not runs_on_all_workers(callback)}
    state_lib.restore(callbacks, {name: one for name, one in state.items() if name in followers}, arrays)


def _kind(array: np.ndarray) -> str:
    # bfloat16 and its like are opaque bytes to NumPy, which knows them by name alone.
    return array.dtype.name if array.dtype.kind == "V" else array.dtype.str
