"""Calls keras.callbacks during a run: Keras' order and keys, one decision for all workers, files only by the chief.

Hooks get values over all workers. Callbacks that write files run on the chief, the others on all workers; `Placement`
says which. What they do to the model is the chief's: see broadcast.py. Training stops if the chief's callbacks set
`model.stop_training`, and its learning rate and variables are used on all workers, also if clocks or files differ.
"""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard
from tfdist.cluster.cluster import Cluster
from tfdist.config import schema, specs, user_code
from tfdist.data import guard
from tfdist.data.feed import Sizes
from tfdist.training.callbacks import active_hooks, broadcast, callback_state, shared_logs
from tfdist.training.callbacks.no_callbacks import NoCallbacks
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.context import StepContext
from tfdist.training.step.layers import model_layers

# What `stopped_by` says if TerminateOnNaN was given a loss that is not finite.
_ON_NAN = "TerminateOnNaN, because of a loss that is not finite,"
# The attributes of a model by which callbacks request an end.
_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Needed:
    """What the callbacks of any worker need."""

    shows_progress: bool = False
    # Hooks after which stop flag, learning rate and variables are synchronised.
    synchronised: frozenset[str] = frozenset()
    # See `shared_logs.find_places`.
    shares_logs: Mapping[str, Collection[int]] = dataclasses.field(default_factory=dict)


class Bar(Protocol):
    """A callback that shows the progress of a script's call of Keras."""

    # Whether `move` shows anything.
    moves: bool

    def move(self, done: int, logs: dict[str, float]) -> None:
        """Shows `done` steps, and its `logs` so far."""


class CallbackRunner(NoCallbacks):
    """The callbacks of a run on one worker; see `NoCallbacks`.

    Made by `make_callbacks`, or from the callbacks of a script.
    """

    active = True

    def __init__(
        self,
        cluster: Cluster,
        model: keras.Model,
        callbacks: list[keras.callbacks.Callback],
        optimizer: keras.optimizers.Optimizer | None = None,
        bar: Bar | None = None,
        params: dict[str, Any] | None = None,
        placement: broadcast.Placement | None = None,
    ):
        """Collective: all workers create it.

        Args:
            optimizer: the optimizer that it is trained with; None: the model is not trained.
            callbacks: the user's; a History is added if there is none.
            bar: the progress bar; None: no bar on this worker.
            placement: which callbacks run on all workers; None: those with `on_all_workers = True`, and those of
                Keras that write no files.
        """
        super().__init__()
        self._cluster, self._model, self._bar = cluster, model, bar
        self._placement = placement or broadcast.Placement()
        self._training = False
        histories = [one for one in callbacks if isinstance(one, keras.callbacks.History)]
        # The return value of `fit`.
        self.history = histories[0] if histories else keras.callbacks.History()
        # The callbacks whose state is saved in checkpoints.
        self._saved = [*(one for one in callbacks if one is not self.history), self.history]
        self._gather_hooks(callbacks, [*model.weights, *(optimizer.variables if optimizer else [])])
        mine = [one for one in self._saved if cluster.is_chief or self._placement.everywhere(one)]
        with _quiet_unless(cluster.is_chief):
            # The bar is last: it shows what the callbacks add to the logs.
            listed = [*mine, *([bar] if bar else [])]
            self._list = keras.callbacks.CallbackList(listed, model=model, **(params or {}))
        self._set_initial()
        self._reported_unsaved: set[str] = set()

    def _gather_hooks(self, callbacks: list[keras.callbacks.Callback], trained: list[Any]) -> None:
        """Finds out which hooks any worker needs: scripts written for Horovod pass some callbacks only on the chief.

        `trained`: the variables that training changes.
        """
        known = {id(one) for one in (*trained, *self._model.variables, *self._model.metrics_variables)}
        found = [
            variable
            for variable in broadcast.find_referenced_variables(callbacks, self._model)
            if id(variable) not in known
        ]
        # Variables that callbacks refer to and that no other part of a checkpoint holds.
        self._held = callback_state.WatchedVariables(callback_state.named_variables(found))
        shown = self._bar is not None and self._bar.moves
        batches = [active_hooks.wants_batches(callbacks, kind) for kind in active_hooks.KINDS]
        acting = [any(active_hooks.is_active(one, hook) for one in callbacks) for hook in active_hooks.HOOKS]
        workers = self._cluster.all_gather([float(value) for value in (shown, *batches, *acting, len(found))])
        shows_progress, *needed = np.any(workers[:, :-1], axis=0).tolist()
        by_kind, by_hook = needed[: len(batches)], needed[len(batches) :]
        self.batch_interval = {
            kind: self.steps_per_execution for kind, need in zip(active_hooks.KINDS, by_kind, strict=True) if need
        }
        synchronised = {hook for hook, need in zip(active_hooks.HOOKS, by_hook, strict=True) if need}
        shares = shared_logs.find_places(self._cluster, self._saved, self._placement.everywhere)
        self._needed = _Needed(shows_progress=shows_progress, synchronised=frozenset(synchronised), shares_logs=shares)
        variables = [variable for variable in trained if variable is not self._settable_rate()]
        if len(set(workers[:, -1])) == 1:  # Unequal counts: variables of callbacks that only the chief has.
            variables += found
        self._variables = broadcast.VariableBroadcast(self._cluster, variables)

    @property
    def steps_per_execution(self) -> int:
        return getattr(self._model, "steps_per_execution", 1)

    def wants_progress(self, kind: str) -> bool:
        # As in Keras: one bar per epoch.
        return self._needed.shows_progress and not (kind == "test" and self._training)

    def progress(self, done: int, logs: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.move(done, logs)

    def stop(self, kind: str = "train") -> bool:
        # Keras sets the attribute in `fit`, `evaluate` or `predict`: it is missing before the first call.
        return bool(getattr(self._model, _STOPS[kind], False))

    def call(self, hook: str, index: int | None = None, logs: dict[str, Any] | None = None) -> None:
        if hook == "on_test_begin":
            self._model.stop_evaluating = False
        elif hook == "on_predict_begin":
            self._model.stop_predicting = False
        # Sorted and rounded like Keras' own: the last bits of a sum depend on the steps per execution.
        arguments = ([] if index is None else [index]) + [_round(logs or {})]
        synchronised = hook in self._needed.synchronised and self._cluster.num_workers > 1
        if synchronised:
            self._variables.begin()
        with self._cluster.pause_timers(), _quiet_unless(self._cluster.is_chief):
            failed = self._call_each(hook, arguments)
        if synchronised:
            self._variables.end()
            self._synchronise(failed)
        if failed is not None:
            raise failed
        if hook in ("on_test_end", "on_predict_end"):
            self._broadcast_attributes()

    def _call_each(self, hook: str, arguments: list[Any]) -> Exception | None:
        """Calls a hook of each callback; returns what one raised that runs on the chief only."""
        logs = shared_logs.SharedLogs(self._cluster, arguments[-1], self._needed.shares_logs.get(hook, ()))
        for index, callback in enumerate([*self._saved, *([self._bar] if self._bar else [])]):
            if self._cluster.num_workers == 1 or self._placement.everywhere(callback):
                if not logs.reach(index):
                    break
                with self._placement.context():
                    self._call_one(callback, hook, arguments)
            elif self._cluster.is_chief:
                try:
                    with self._without_collectives(callback, hook):
                        self._call_one(callback, hook, arguments)
                except (Exception, SystemExit) as error:
                    logs.fail()
                    return user_code.refuse_exit(error) if isinstance(error, SystemExit) else error
        return None

    def _call_one(self, callback: keras.callbacks.Callback, hook: str, arguments: list[Any]) -> None:
        before = self.stop()
        with self._guard(callback, hook):
            getattr(callback, hook)(*arguments)
        if self.stop() and not before:
            self.stopped_by = type(callback).__name__

    def _guard(self, callback: keras.callbacks.Callback, hook: str) -> contextlib.AbstractContextManager:
        """Guards a hook in training: on_train_begin, on all workers, may change what the trace reads later."""
        alone = self._cluster.num_workers > 1 and not self._placement.everywhere(callback)
        traced = alone if hook == "on_train_begin" else hook != "on_train_end"
        acts = active_hooks.is_defined(callback, hook) or hook == "on_epoch_end"
        if not (traced and self._training and active_hooks.is_users(callback) and acts):
            return contextlib.nullcontext()
        objects = {layer.name: layer for layer in model_layers.of_all_depths(self._model)}
        objects |= {"optimizer": self._model.optimizer}
        return guard.around_hook(callback, hook, objects, alone, compares=hook.startswith("on_epoch"))

    def on_all_workers(self) -> list[keras.callbacks.Callback]:
        return [one for one in self._saved if self._placement.everywhere(one)]

    @property
    def held(self) -> list[Any]:
        return list(self._held.variables.values())

    def train_begin(self, saved: Any = None, epoch: int | None = None, *, ended=False, workdir=None) -> None:
        self._model.stop_training, self._training = False, True
        if self._cluster.is_chief and workdir is not None:
            callback_state.begin_files(self._saved, saved, ended, workdir)
        self.call("on_train_begin")
        self._set_initial()
        for opaque in callback_state.find_opaque(self._saved) if self._cluster.is_chief and workdir is not None else ():
            self._warn_unsaved(*opaque)
        if epoch is not None:  # Repeat on_epoch_begin on resume: callbacks may open files there.
            self.call("on_epoch_begin", epoch)

    def train_end(self, logs: dict[str, float]) -> None:
        self.call("on_train_end", logs=logs)
        self._training = False
        self._broadcast_attributes()
        self._model.history = self.history
        if not self._model.compiled:
            del self._model.optimizer  # It is not part of the exported model.

    def nonfinite_loss(self, step: int, loss: float) -> bool:
        for callback in self._list.callbacks:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                with _quiet_unless(self._cluster.is_chief):
                    callback.on_batch_end(step, {"loss": loss})
        self._synchronise()
        if self.stop():
            self.stopped_by = _ON_NAN
        return self.stopped_on_nan

    @property
    def stopped_on_nan(self) -> bool:
        return self.stopped_by == _ON_NAN

    def state(self, variables: Iterable[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        values, arrays = callback_state.snapshot(self._saved, self._initial, self._warn_unsaved)
        known = {id(one) for one in variables}
        changed = self._held.changed_values()
        held = {name: value for name, value in changed.items() if id(self._held.variables[name]) not in known}
        draws = callback_state.add_draws(arrays) if self._placement.saves_draws else None
        return {"callbacks": values, "stop": self.stop(), "draws": draws}, arrays | held

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        new = callback_state.restore(self._saved, saved["callbacks"], arrays)
        lost = callback_state.restore_variables(self._held.variables, arrays)
        if new and self._cluster.is_chief:
            self._warn(f"not in the checkpoint, these callbacks start from scratch: {', '.join(new)}")
        if lost and self._cluster.is_chief:
            self._warn(f"the callbacks refer to no variables for these values of the checkpoint: {', '.join(lost)}")
        callback_state.restore_draws(saved.get("draws") if self._placement.saves_draws else None, arrays)
        self._model.stop_training, self._model.history = saved["stop"], self.history

    def _set_initial(self) -> None:
        self._initial = callback_state.initial_state(self._saved)
        if self._cluster.is_chief:
            self._held.note()

    @contextlib.contextmanager
    def _without_collectives(self, callback: keras.callbacks.Callback, hook: str) -> Iterator[None]:
        alone = collective_guard.local(self._model)
        advice = "set on_all_workers = True on the callback, and evaluate by tfdist.evaluate(cluster, model, ...)"
        with cluster_lib.on_one_worker(f"{type(callback).__name__}.{hook}", advice), alone:
            yield

    def _synchronise(self, failed: Exception | None = None) -> None:
        """Stops all workers if the chief stops or `failed`, and gives them its variables and learning rate."""
        if self._cluster.num_workers == 1:
            return
        rate = self._settable_rate()
        mine = 0.0 if rate is None else float(keras.ops.convert_to_numpy(rate))
        stops = [float(self.stop(kind)) for kind in _STOPS]
        workers = self._cluster.all_gather([mine, float(self._variables.changed), float(failed is not None), *stops])
        if workers[0, 2]:
            collective_guard.share(self._cluster, None, failed)
        self._model.stop_training, self._model.stop_evaluating, self._model.stop_predicting = map(bool, workers[0, 3:])
        if np.any(workers[:, 1]):
            self._variables.copy()
        if rate is not None and workers[0, 0] != mine:
            rate.assign(workers[0, 0])

    def _broadcast_attributes(self) -> None:
        if self._cluster.num_workers > 1 and not self._training:
            broadcast.broadcast_attributes(self._cluster, self._saved, self._initial, self._placement.everywhere)

    def _settable_rate(self) -> keras.Variable | None:
        rate = getattr(getattr(self._model, "optimizer", None), "learning_rate", None)
        return rate if isinstance(rate, keras.Variable) else None

    def _warn(self, text: str) -> None:
        print(f"tfdist: worker {self._cluster.rank}: {text}", file=sys.stderr, flush=True)

    def _warn_unsaved(self, name: str, attribute: str, value: Any) -> None:
        """Warns once about an attribute of a user's callback that a checkpoint cannot hold."""
        callback, attribute = callback_state.by_name(self._saved)[name], f"{name}.{attribute}"
        if attribute not in self._reported_unsaved and not type(callback).__module__.startswith("keras."):
            self._reported_unsaved.add(attribute)
            self._warn(
                f"{attribute} ({type(value).__name__}) is not saved in checkpoints, which hold numbers, texts, arrays, "
                "and lists and dicts of at most 100,000 elements: on resume it has the value that on_train_begin sets"
            )


def make_callbacks(config: config_lib.Config, cluster: Cluster, context: StepContext, sizes: Sizes) -> CallbackRunner:
    """Builds the callbacks in `config.callbacks`.

    Raises:
        ValueError: a spec cannot be built, or the callback monitors or sets something that the run does not have.
    """
    model, optimizer, names = context.model, context.optimizer, context.names
    evaluated = [f"val_{name}" for name in names] if config.data.evaluation_split is not None else []
    callbacks = []
    for index, spec in enumerate(config.callbacks):
        field = f"config.callbacks[{index}]"
        callback = specs.build(spec, field=field)
        _check_callback(callback, field, [*names, *evaluated, "learning_rate"], optimizer)
        if getattr(callback, "restore_best_weights", False) and optimizer_lib.evaluates_averages(config, optimizer):
            raise ValueError(
                f"{field}.restore_best_weights=True restores weights, but with config.optimizer.use_ema=True their "
                "averages are evaluated and exported: remove it, and set config.checkpoint.best_metric, which keeps "
                "the checkpoint with the best averages."
            )
        callbacks.append(callback)
    model.optimizer = optimizer  # Keras' callbacks read it there.
    epochs = math.ceil(sizes.total_steps / sizes.steps_per_epoch)
    params = {"verbose": 0, "epochs": epochs, "steps": sizes.steps_per_epoch}
    return CallbackRunner(cluster, model, callbacks, optimizer, None, params)


def _check_callback(callback: Any, field: str, names: list[str], optimizer: keras.optimizers.Optimizer) -> None:
    if not isinstance(callback, keras.callbacks.Callback):
        raise ValueError(f"{field}.target must return a keras.callbacks.Callback. Received: {type(callback).__name__}")
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise ValueError(f"{field}: BackupAndRestore is not needed: run the same command to resume. Remove it.")
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    if isinstance(callback, setters) and optimizer_lib.settable_learning_rate(optimizer) is None:
        raise ValueError(
            f"{field}: {type(callback).__name__} cannot set the learning rate of a schedule: set "
            f'config.learning_rate.schedule to {{"target": "{schema.SETTABLE_SCHEDULE}"}}.'
        )
    monitor = getattr(callback, "monitor", None)
    if not isinstance(monitor, str):
        return
    if monitor not in names and getattr(callback, "save_best_only", True):
        raise ValueError(f"{field}.monitor={monitor!r} is not a metric of this run. Choose one of: {', '.join(names)}.")
    if callback.mode == "auto" and monitor.removeprefix("val_") != "loss":
        raise ValueError(f'{field}: set mode="max" or mode="min" for monitor={monitor!r}.')


def _round(logs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(np.float32(value)) if isinstance(value, float) else value for name, value in sorted(logs.items())
    }


@contextlib.contextmanager
def _quiet_unless(chief: bool) -> Iterator[None]:
    """Keeps Keras' own callbacks from printing on other workers what the chief prints."""
    if chief or not keras.config.is_interactive_logging_enabled():
        yield
        return
    keras.config.disable_interactive_logging()
    try:
        yield
    finally:
        keras.config.enable_interactive_logging()
