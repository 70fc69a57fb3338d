"""Which hooks of a Keras callback do anything: known before they are called, so that idle ones cost nothing."""

from collections.abc import Callable
from typing import Any

import keras

# Keras' own whose hooks for each batch do something only where they are set so.
_IDLE_BETWEEN_EPOCHS: dict[type, Callable[[Any], bool]] = {
    keras.callbacks.ModelCheckpoint: lambda callback: callback.save_freq == "epoch",
    keras.callbacks.TensorBoard: lambda callback: callback.update_freq == "epoch" and not callback._should_trace,
    keras.callbacks.TerminateOnNaN: lambda callback: True,  # `CallbackRunner.nonfinite_loss` calls it.
}
# Keras' own that change nothing: they write, or only look. Of a subclass nobody knows.
_LOOK_ON = {
    getattr(keras.callbacks, name)
    for name in ("History", "ModelCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
}
KINDS = ("train", "test", "predict")
# All that can be told.
HOOKS = [
    *("on_epoch_begin", "on_epoch_end"),
    *(f"on_{kind}{moment}" for kind in KINDS for moment in ("_begin", "_end", "_batch_begin", "_batch_end")),
]


def wants_batches(callbacks: list[keras.callbacks.Callback], kind: str) -> bool:
    """Whether one of the callbacks wants to see each batch of "train", "test" or "predict"."""
    names = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    if kind == "train":
        names += ["on_batch_begin", "on_batch_end"]  # Keras' older names, which the newer ones call.
    return any(not _is_idle(callback, name) for callback in callbacks for name in names)


def _is_idle(callback: keras.callbacks.Callback, name: str) -> bool:
    method = getattr(callback, name)
    if getattr(method, "_is_default", False):  # Keras' mark of what nobody has overridden.
        return True
    return any(
        isinstance(callback, kind) and getattr(method, "__func__", None) is getattr(kind, name) and idle(callback)
        for kind, idle in _IDLE_BETWEEN_EPOCHS.items()
    )


def is_active(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a callback may do something in `hook` that the other workers must learn of."""
    names = [hook, hook.replace("on_train_batch", "on_batch")]  # Keras' older names, which the newer ones call.
    return type(callback) not in _LOOK_ON and not all(
        getattr(getattr(callback, name), "_is_default", False) for name in names
    )
