"""Broadcasts to all workers what callbacks change on the chief.

After a hook, its changes are broadcast: weights, optimizer variables, the learning rate, `model.stop_training`, and
variables that the callback or its functions refer to, such as an annealed loss weight. When training ends, the
attributes of callbacks that run on the chief only are broadcast, because scripts read them.
"""

import contextlib
import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.training.callbacks import callback_state

# Keras' callbacks that write no files: they decide the same on all workers.
_EVERYWHERE = (
    *(keras.callbacks.EarlyStopping, keras.callbacks.History, keras.callbacks.LearningRateScheduler),
    *(keras.callbacks.ReduceLROnPlateau, keras.callbacks.SwapEMAWeights, keras.callbacks.TerminateOnNaN),
)
# Larger arrays are not broadcast when training ends: mostly copies of the weights.
_LARGEST_BROADCAST_BYTES = 2**20
# How many first elements of a container say whether it holds data, and of which types these are.
_LOOKED_AT = 100
_DATA = (int, float, complex, str, bytes, np.generic)


def runs_on_all_workers(callback: keras.callbacks.Callback) -> bool:
    """Returns True if a callback runs on all workers, False if on the chief only."""
    return getattr(callback, "on_all_workers", type(callback) in _EVERYWHERE)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Which callbacks run on all workers, and how: the others run on the chief only."""

    everywhere: Callable[[keras.callbacks.Callback], bool] = runs_on_all_workers
    # The context of hooks that run on all workers.
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    # Whether a checkpoint holds the states of the global random generators: only callbacks draw, on all workers.
    saves_draws: bool = False


def find_referenced_variables(callbacks: list[keras.callbacks.Callback], model: keras.Model) -> list[Any]:
    """Returns the variables in the attributes of callbacks and `model`, and in the closures and globals that they use.

    Lists, tuples and dicts are searched, and the attributes of models, layers, losses and metrics.
    """
    waiting: list[Any] = [model] if callbacks else []
    for callback in callbacks:
        attributes = list(vars(callback).values())
        users = [kind for kind in type(callback).__mro__ if not kind.__module__.startswith("keras.")]
        waiting += attributes
        for function in filter(inspect.isfunction, [*attributes, *(v for kind in users for v in vars(kind).values())]):
            with contextlib.suppress(ValueError):  # A name of a closure that has no value yet.
                used = inspect.getclosurevars(function)
                waiting += [*used.nonlocals.values(), *used.globals.values()]
    found, seen = [], set()
    for value in waiting:  # The loop also visits what it appends.
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Variable | tf.Variable):
            # A sum over replicas, such as a metric's, can only be read by all workers together.
            if checkpoint_format.tf_variable(value).synchronization != tf.VariableSynchronization.ON_READ:
                found.append(value)
        elif isinstance(value, list | tuple | dict):
            held = value.values() if isinstance(value, dict) else value
            # Data, which may have millions of elements, begin with numbers or texts.
            if not all(isinstance(one, _DATA) for one in itertools.islice(held, _LOOKED_AT)):
                waiting.extend(held)
        elif isinstance(value, keras.Layer | keras.Loss | keras.Metric):
            waiting.extend(vars(value).values())
        elif isinstance(value, keras.optimizers.Optimizer) and value is not getattr(model, "optimizer", None):
            waiting.append(value.learning_rate)  # Which callbacks set; not its slots.
    return found


class VariableBroadcast:
    """Detects changes of variables on the chief, and broadcasts their values."""

    def __init__(self, cluster: Cluster, variables: list[Any]):
        self._variables = variables
        self._broadcast = cluster.make_broadcast_variables(variables)
        self._before: list[tf.Tensor] = []
        # Whether this worker's variables have changed since the last broadcast.
        self.changed = False

    def begin(self) -> None:
        """Stores the variables' values; called before a hook."""
        self._before = self._values()

    def end(self) -> None:
        """Compares the variables with their stored values; called after a hook."""
        self.changed |= bool(self._before) and bool(_any_changed(self._before, self._values()))
        self._before = []

    def copy(self) -> None:
        """Gives every worker the chief's values. Collective: all workers call it."""
        self._broadcast()
        self.changed = False

    def _values(self) -> list[tf.Tensor]:
        values = [one.value if isinstance(one, keras.Variable) else one for one in self._variables]
        return [tf.convert_to_tensor(value) for value in values]


@tf.function(autograph=False, reduce_retracing=True)
def _any_changed(before: list[tf.Tensor], after: list[tf.Tensor]) -> tf.Tensor:
    pairs = zip(before, after, strict=True)
    return tf.reduce_any([tf.reduce_any(tf.not_equal(one, other)) for one, other in pairs])


def broadcast_attributes(
    cluster: Cluster,
    callbacks: list[keras.callbacks.Callback],
    before: callback_state.InitialState,
    everywhere: Callable[[keras.callbacks.Callback], bool],
) -> None:
    """Sets the attributes that changed on the chief since `before` on all workers. Collective: all workers call it.

    Attributes of callbacks that run `everywhere` stay as they are.
    """
    content = b""
    if cluster.is_chief:
        state, arrays = callback_state.snapshot(callbacks, before, lambda *unsaved: None, _LARGEST_BROADCAST_BYTES)
        # NumPy finds bfloat16 and similar dtypes by their names only.
        dtypes = {name: each.dtype.name if each.dtype.kind == "V" else each.dtype.str for name, each in arrays.items()}
        encoded = {name: [dtypes[name], array.shape, array.tobytes().hex()] for name, array in arrays.items()}
        content = json.dumps([state, encoded]).encode()
    content = cluster.broadcast_bytes(content)
    if cluster.is_chief:
        return
    state, encoded = json.loads(content)  # Not pickle: unpickling can run code.
    arrays = {
        name: np.frombuffer(bytes.fromhex(values), np.dtype(dtype)).reshape(shape).copy()
        for name, (dtype, shape, values) in encoded.items()
    }
    named = callback_state.by_name(callbacks).items()
    on_chief = {name for name, callback in named if not everywhere(callback)}
    callback_state.restore(callbacks, {name: value for name, value in state.items() if name in on_chief}, arrays)
