"""Finds out which hooks of a Keras callback have an effect, so that the others cost no synchronisation."""

from collections.abc import Callable
from typing import Any

import keras

# Keras' callbacks whose batch hooks have an effect only with some settings -> True if they have none.
_IDLE_BETWEEN_EPOCHS: dict[type, Callable[[Any], bool]] = {
    keras.callbacks.Callback: lambda callback: True,  # Its hooks do nothing.
    keras.callbacks.ModelCheckpoint: lambda callback: callback.save_freq == "epoch",
    keras.callbacks.TensorBoard: lambda callback: callback.update_freq == "epoch" and not callback._should_trace,
    keras.callbacks.TerminateOnNaN: lambda callback: True,  # Called by `CallbackRunner.nonfinite_loss`.
}
# Keras' callbacks that only read and write files. Their subclasses may do more.
_READ_ONLY = {
    getattr(keras.callbacks, name)
    for name in ("History", "ModelCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
}
KINDS = ("train", "test", "predict")
# The hooks after which workers may have to be synchronised.
HOOKS = [
    *("on_epoch_begin", "on_epoch_end"),
    *(f"on_{kind}{moment}" for kind in KINDS for moment in ("_begin", "_end", "_batch_begin", "_batch_end")),
]


def wants_batches(callbacks: list[keras.callbacks.Callback], kind: str) -> bool:
    """Returns True if a callback has an active batch hook of "train", "test" or "predict"."""
    names = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    if kind == "train":
        names += ["on_batch_begin", "on_batch_end"]  # Keras' older names, called by the newer hooks.
    return any(not _is_idle(callback, name) for callback in callbacks for name in names)


def _is_idle(callback: keras.callbacks.Callback, name: str) -> bool:
    return any(
        isinstance(callback, kind) and not _overrides(callback, name, kind) and idle(callback)
        for kind, idle in _IDLE_BETWEEN_EPOCHS.items()
    )


def _overrides(callback: keras.callbacks.Callback, name: str, kind: type = keras.callbacks.Callback) -> bool:
    return getattr(getattr(callback, name), "__func__", None) is not getattr(kind, name)


def only_writes(callback: keras.callbacks.Callback) -> bool:
    """Returns True for Keras' callbacks that only read and write files."""
    return type(callback) in _READ_ONLY


def is_defined(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Returns True if a callback overrides `hook`."""
    names = [hook, hook.replace("on_train_batch", "on_batch")]  # Keras' older names, called by the newer hooks.
    return any(_overrides(callback, name) for name in names)


def is_active(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Returns True if `hook` of a callback may change what must be the same on all workers."""
    return not only_writes(callback) and is_defined(callback, hook)


def is_users(callback: keras.callbacks.Callback) -> bool:
    """Returns True for callbacks that run code that is not Keras'."""
    of_functions = (keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler)
    return not type(callback).__module__.startswith("keras.") or isinstance(callback, of_functions)
