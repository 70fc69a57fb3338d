"""Calls Keras callbacks during a run on every worker, in Keras' order and with Keras' keys.

Hooks get values over all workers, so callbacks decide alike on all. Callbacks that write files run on the chief only.
"""

import contextlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import numpy as np

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard
from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.data import guard
from tfdist.training.features import callback_state
from tfdist.training.hooks import Hooks
from tfdist.training.step.layers import model_layers

# What `stopped_by` says if TerminateOnNaN was given a loss that is not finite.
_ON_NAN = "TerminateOnNaN, because of a loss that is not finite,"
# The attributes of a model by which callbacks request an end.
_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}
# Keras' callbacks that write files.
_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "RemoteMonitor", "TensorBoard")
    if hasattr(keras.callbacks, name)
)
# A class of Keras that defines batch hooks -> whether these have no effect for a callback with its settings.
_IDLE_BETWEEN_EPOCHS: dict[type, Callable[[Any], bool]] = {
    keras.callbacks.Callback: lambda callback: True,  # Its hooks do nothing.
    keras.callbacks.ModelCheckpoint: lambda callback: callback.save_freq == "epoch",
    keras.callbacks.TensorBoard: lambda callback: callback.update_freq == "epoch" and not callback._should_trace,
    keras.callbacks.TerminateOnNaN: lambda callback: True,  # Called by `CallbackRunner.nonfinite_loss`.
}


def runs_on_chief(callback: keras.callbacks.Callback, in_script: bool = False) -> bool:
    """Returns whether a callback runs on the chief only: it writes files, or is from a library, such as W&B's.

    Its attribute `on_all_workers` overrides this. In a script, ModelCheckpoint runs on all workers: Keras' `save` then
    writes each file only once.
    """
    writers = tuple(one for one in _WRITERS if not (in_script and one is keras.callbacks.ModelCheckpoint))
    of_library = not (type(callback).__module__.startswith("keras.") or user_code.defines(type(callback)))
    return not getattr(callback, "on_all_workers", not (isinstance(callback, writers) or of_library))


def has_user_code(callback: keras.callbacks.Callback) -> bool:
    """Returns True for callbacks that run other code than Keras' own."""
    of_functions = (keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler)
    return not type(callback).__module__.startswith("keras.") or isinstance(callback, of_functions)


def _definer(callback: keras.callbacks.Callback, hook: str) -> type | None:
    """Returns the class that defines `hook` for a callback; None: the hook is set on the object."""
    names = {hook, hook.replace("on_train_batch", "on_batch")}  # Keras' older names, called by the newer hooks.
    if names & vars(callback).keys():
        return None
    return next(kind for kind in type(callback).__mro__ if names & vars(kind).keys())


def _wants_batches(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Returns True if a batch hook of "train", "test" or "predict" has an effect."""
    definers = (_definer(callback, f"on_{kind}_batch_{moment}") for moment in ("begin", "end"))
    return any(one not in _IDLE_BETWEEN_EPOCHS or not _IDLE_BETWEEN_EPOCHS[one](callback) for one in definers)


class Bar(Protocol):
    """A callback that shows the progress of a script's `fit`, `evaluate` or `predict`."""

    # Whether `move` shows anything.
    moves: bool

    def move(self, done: int, logs: dict[str, float]) -> None:
        """Shows `done` steps, and the `logs` so far."""


class CallbackRunner(Hooks):
    """The callbacks of a run on one worker; see `Hooks`."""

    active = True

    def __init__(
        self,
        cluster: Cluster,
        model: keras.Model,
        callbacks: list[keras.callbacks.Callback],
        bar: Bar | None = None,
        params: dict[str, Any] | None = None,
        script: Callable[[], AbstractContextManager] | None = None,
        saves_draws: bool = False,
    ):
        """Collective: all workers create it.

        Args:
            callbacks: the user's; a History is added if there is none.
            bar: the progress bar; None: no bar on this worker.
            script: the context of a script's hooks on all workers; None: hooks may predict on this worker alone.
            saves_draws: whether checkpoints hold the states of the global random generators; False if others draw, too.
        """
        super().__init__()
        self._cluster, self._model, self._bar = cluster, model, bar
        self._script, self._saves_draws, self._training = script, saves_draws, False
        histories = [one for one in callbacks if isinstance(one, keras.callbacks.History)]
        # The return value of `fit`.
        self.history = histories[0] if histories else keras.callbacks.History()
        # The callbacks whose state is saved in checkpoints.
        self._saved = [*(one for one in callbacks if one is not self.history), self.history]
        self._state = callback_state.CallbackState(self._saved, model)
        self._chief_only = {id(one) for one in self._saved if runs_on_chief(one, script is not None)}
        # The bar is last: it shows what the callbacks add to the logs.
        self._called = [*(self._saved if cluster.is_chief else self.on_all_workers()), *([bar] if bar else [])]
        with _quiet_unless(cluster.is_chief):
            for one in self._called:
                one.set_params(params or {})
                one.set_model(model)
        self._gather_needs()
        self._warned: set[str] = set()

    def _gather_needs(self) -> None:
        """Finds out which hooks the callbacks of any worker need.

        Workers may differ: scripts written for Horovod pass callbacks that write files on the chief only.

        Raises:
            ValueError: the workers have different callbacks among those that run on all workers.
        """
        names = ", ".join(type(one).__name__ for one in self.on_all_workers())
        shown = self._bar is not None and self._bar.moves
        wants = [any(_wants_batches(one, kind) for one in self._saved) for kind in _STOPS]
        flags = map(int, (shown, any(map(has_user_code, self._saved)), *wants))
        workers = self._cluster.all_gather([zlib.crc32(names.encode()), *flags])
        if np.ptp(workers[:, 0]):
            raise ValueError(
                f"All workers must pass the same callbacks. By rank: {self._cluster.all_gather_text(names)}. Set "
                "on_all_workers = False on a callback that writes files: it runs on the chief only, as Keras' do."
            )
        self._shows_progress, self._may_differ, *needed = workers[:, 1:].any(axis=0).tolist()
        interval = self.steps_per_execution
        self.batch_interval = {kind: interval for kind, need in zip(_STOPS, needed, strict=True) if need}

    @property
    def steps_per_execution(self) -> int:
        return getattr(self._model, "steps_per_execution", 1)

    def on_all_workers(self) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that run on all workers."""
        return [one for one in self._saved if id(one) not in self._chief_only]

    @property
    def saved_variables(self) -> list[Any]:
        return list(self._state.variables.values())

    def wants_progress(self, kind: str) -> bool:
        # As in Keras: one bar per epoch.
        return self._shows_progress and not (kind == "test" and self._training)

    def progress(self, done: int, logs: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.move(done, logs)

    def stop_requested(self, kind: str = "train") -> bool:
        # Keras sets the attribute in `fit`, `evaluate` or `predict`: it is missing before the first call.
        return bool(getattr(self._model, _STOPS[kind], False))

    def call(self, hook: str, index: int | None = None, logs: dict[str, Any] | None = None) -> None:
        if hook == "on_test_begin":
            self._model.stop_evaluating = False
        elif hook == "on_predict_begin":
            self._model.stop_predicting = False
        # Sorted and rounded like Keras' own: the last bits of a sum depend on the steps per execution.
        arguments = ([] if index is None else [index]) + [_round(logs or {})]
        with self._cluster.monitor.pause_timers(), _quiet_unless(self._cluster.is_chief):
            for callback in self._called:
                before = self.stop_requested()
                with self._context(callback, hook), self._guard(callback, hook):
                    getattr(callback, hook)(*arguments)
                if self.stop_requested() and not before:
                    self.stopped_by = type(callback).__name__
        if self._may_differ and not hook.endswith("batch_begin"):
            self._share_stop()

    def _share_stop(self) -> None:
        """Stops all workers if one stops: callbacks that read a clock or a file may decide differently. Collective."""
        stops = self._cluster.all_gather([float(self.stop_requested(kind)) for kind in _STOPS]).any(axis=0)
        self._model.stop_training, self._model.stop_evaluating, self._model.stop_predicting = stops.tolist()

    def _context(self, callback: keras.callbacks.Callback, hook: str) -> AbstractContextManager:
        on_all, stack = id(callback) not in self._chief_only, contextlib.ExitStack()
        if callback is self._bar:
            return stack
        if on_all and self._script is not None:
            return self._script()
        if self._cluster.num_workers > 1:
            if not on_all:
                advice = (
                    "set on_all_workers = True on the callback, and evaluate by tfdist.evaluate(cluster, model, ...)"
                )
                stack.enter_context(cluster_lib.on_one_worker(f"{type(callback).__name__}.{hook}", advice))
            stack.enter_context(collective_guard.predict_locally(self._model))
        return stack

    def _guard(self, callback: keras.callbacks.Callback, hook: str) -> AbstractContextManager:
        """Guards a hook in training, except on_train_end, and except the on_train_begin of callbacks on all workers.

        on_train_begin may change what is traced later.
        """
        alone = self._cluster.num_workers > 1 and id(callback) in self._chief_only
        traced = alone if hook == "on_train_begin" else hook != "on_train_end"
        acts = _definer(callback, hook) is not keras.callbacks.Callback or hook == "on_epoch_end"
        if not (traced and self._training and has_user_code(callback) and callback is not self._bar and acts):
            return contextlib.nullcontext()
        objects = {layer.name: layer for layer in model_layers.all_layers(self._model)}
        objects |= {"optimizer": self._model.optimizer}
        return guard.around_hook(callback, hook, objects, alone, compares=hook.startswith("on_epoch"))

    def train_begin(self, saved: Any = None, epoch: int | None = None, *, ended=False, saves=False) -> None:
        self._model.stop_training, self._training = False, True
        if self._cluster.is_chief and saved:
            callback_state.rewind_files(self._saved, saved["callbacks"], ended or saved["stop"])
        self.call("on_train_begin")
        if self._cluster.is_chief and saves:
            self._state.begin()
        if epoch is not None:  # Repeat on_epoch_begin on resume: callbacks may open files there.
            self.call("on_epoch_begin", epoch)

    def train_end(self, logs: dict[str, float]) -> None:
        self.call("on_train_end", logs=logs)
        self._training = False
        self._cluster.barrier()  # The chief's callbacks have written their files.
        self._model.history = self.history
        if not self._model.compiled:
            del self._model.optimizer  # It is not part of the exported model.

    def nonfinite_loss(self, step: int, loss: float) -> bool:
        for callback in self._called:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                with _quiet_unless(self._cluster.is_chief):
                    callback.on_batch_end(step, {"loss": loss})
        if self.stop_requested():
            self.stopped_by = _ON_NAN
        return self.stopped_on_nan

    @property
    def stopped_on_nan(self) -> bool:
        return self.stopped_by == _ON_NAN

    def state(self, variables: Iterable[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        values, arrays, unsaved = self._state.save({id(one) for one in variables})
        draws = callback_state.encode_draws(arrays) if self._saves_draws else None
        if new := [one for one in unsaved if one not in self._warned]:
            self._warned.update(new)
            self._warn(
                f"these attributes of callbacks are not saved in checkpoints: {', '.join(new)}. Checkpoints hold "
                "numbers, strings, arrays, and lists and dicts of at most 100,000 elements. After a resume, the "
                "attributes are as on_train_begin leaves them. If they change in training, define get_state() and "
                "set_state(state) for the callback or for the class of the attribute"
            )
        return {"callbacks": values, "stop": self.stop_requested(), "draws": draws}, arrays

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        new = self._state.restore(saved["callbacks"], arrays)
        if new and self._cluster.is_chief:
            self._warn(
                f"these callbacks or attributes start from scratch: {', '.join(new)}. They are not in the checkpoint, "
                "or another release saved them"
            )
        if self._saves_draws and saved.get("draws") is not None:
            callback_state.restore_draws(saved["draws"], arrays)
        self._model.stop_training, self._model.history = saved["stop"], self.history

    def _warn(self, text: str) -> None:
        print(f"tfdist: worker {self._cluster.rank}: {text}", file=sys.stderr, flush=True)


def _round(logs: dict[str, Any]) -> dict[str, Any]:
    """Sorts values by name, and rounds them to the precision of Keras' logs."""
    kind = np.float64 if keras.config.floatx() == "float64" else np.float32
    return {name: float(kind(value)) if isinstance(value, float) else value for name, value in sorted(logs.items())}


@contextlib.contextmanager
def _quiet_unless(chief: bool) -> Iterator[None]:
    """Keeps Keras' own callbacks from repeating on other workers what the chief prints."""
    if chief or not keras.config.is_interactive_logging_enabled():
        yield
        return
    keras.config.disable_interactive_logging()
    try:
        yield
    finally:
        keras.config.enable_interactive_logging()
