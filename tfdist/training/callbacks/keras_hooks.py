"""The bridge to keras.callbacks: Keras' order and keys, one decision for all workers, files by the chief alone.

Callbacks run on the chief, with values over all workers, and the others follow: see `following.py`. One that has to run
on all workers says so by `on_all_workers = True`; training then stops where any worker's `model.stop_training` says so,
and the chief's learning rate is everyone's.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfdist.cluster import collective_guard
from tfdist.cluster.cluster import Cluster
from tfdist.training.callbacks import active_hooks, broadcast, hooks, state
from tfdist.training.callbacks.progress_bar import ProgressBar

# tfdist's own bar takes its place.
_PROGRESS = keras.callbacks.ProgbarLogger


class KerasHooks(hooks.Hooks):
    """The callbacks of a run on one worker; made by `of_script` or `named_callbacks.of_config`."""

    listens = True

    def __init__(
        self,
        cluster: Cluster,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None,
        given: list[keras.callbacks.Callback],
        bar: ProgressBar | None,
        params: dict[str, Any],
    ):
        super().__init__()
        self._cluster, self._model, self._optimizer, self._bar = cluster, model, optimizer, bar
        self._gather = cluster.make_gather()
        self._history = next((c for c in given if isinstance(c, keras.callbacks.History)), keras.callbacks.History())
        # What a checkpoint remembers; the bar, which stands last, shows what they add to the logs.
        self._kept = [*(callback for callback in given if callback is not self._history), self._history]
        self._agree(given)
        mine = [callback for callback in self._kept if cluster.is_chief or broadcast.runs_on_all_workers(callback)]
        with _silence(not cluster.is_chief):
            listed = [*mine, *([bar] if bar else [])]
            self._list = keras.callbacks.CallbackList(listed, model=model, **params)
        self._baseline = state.initial_state(self._kept)
        self._lost: set[str] = set()
        self._training = False

    def _agree(self, given: list[keras.callbacks.Callback]) -> None:
        # Asked of all workers: those who come from Horovod give some callbacks to the chief alone.
        # With one worker nobody follows, and a script's globals may be long lists.
        held = broadcast.find_variables(given) if self._cluster.num_workers > 1 else []
        shown = self._bar is not None and self._bar.moves
        batches = [active_hooks.wants_batches(given, kind) for kind in active_hooks.KINDS]
        acting = [any(active_hooks.is_active(callback, hook) for callback in given) for hook in active_hooks.HOOKS]
        workers = self._gather([float(one) for one in (shown, *batches, *acting, len(held))])
        self._shows, *wanted = np.any(workers[:, :-1], axis=0).tolist()
        steps = getattr(self._model, "steps_per_execution", 1)
        self.each_steps = {kind: steps for kind, wants in zip(active_hooks.KINDS, wanted[:3], strict=True) if wants}
        # After these the workers agree on what has come of it.
        self._settled = {hook for hook, acts in zip(active_hooks.HOOKS, wanted[3:], strict=True) if acts}
        trained = [*self._model.weights, *(self._optimizer.variables if self._optimizer else [])]
        variables = [variable for variable in trained if variable is not self._settable_rate()]
        if len(set(workers[:, -1])) == 1:  # Otherwise they are those of callbacks that the chief alone was given.
            known = {id(variable) for variable in trained}
            variables += [variable for variable in held if id(variable) not in known]
        self._following = broadcast.VariableBroadcast(self._cluster, variables)

    @property
    def history(self) -> keras.callbacks.History:
        return self._history

    def stop(self) -> bool:
        return bool(self._model.stop_training)

    def shows(self, kind: str) -> bool:
        return self._shows and not (kind == "test" and self._training)  # As Keras: one bar an epoch, in `fit`.

    def train_begin(self, saved: dict[str, Any] | None = None, epoch: int | None = None) -> None:
        self._model.stop_training, self._training = False, True
        if saved and self._cluster.is_chief:
            state.rewind_files(self._kept, saved["callbacks"])
        self._call("on_train_begin")
        self._baseline = state.initial_state(self._kept)
        if epoch is not None:  # Once more: a callback may open there what a checkpoint cannot hold.
            self._call("on_epoch_begin", epoch)

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        new = state.restore(self._kept, saved["callbacks"], arrays)
        if new and self._cluster.is_chief:
            self._warn(f"the checkpoint knows nothing of these callbacks, which begin anew: {', '.join(new)}")
        self._model.stop_training = saved["stop"]
        self._model.history = self._history

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        remembered, arrays = state.snapshot(self._kept, self._baseline, self._warn_of_loss)
        return {"callbacks": remembered, "stop": self.stop()}, arrays

    def train_end(self, logs: dict[str, float]) -> None:
        self._call("on_train_end", logs)
        self._training = False
        self._send()
        self._model.history = self._history
        if not self._model.compiled:
            del self._model.optimizer  # The exported model shall not hold it.

    def epoch_begin(self, epoch: int) -> None:
        self._call("on_epoch_begin", epoch)

    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self._call("on_epoch_end", epoch, logs)

    def batch_begin(self, step: int) -> None:
        self._call("on_train_batch_begin", step)

    def batch_end(self, step: int, logs: dict[str, float]) -> None:
        self._call("on_train_batch_end", step, logs)

    def not_finite(self, step: int, loss: float) -> bool:
        watching = [
            callback for callback in self._list.callbacks if isinstance(callback, keras.callbacks.TerminateOnNaN)
        ]
        for callback in watching:
            with _silence(not self._cluster.is_chief):
                callback.on_batch_end(step, {"loss": loss})
        self._settle()
        self.terminated = self.stop()
        return self.terminated

    def progress(self, done: int, logs: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.move(done, logs)

    def test_begin(self) -> None:
        self._call("on_test_begin")

    def test_batch_begin(self, step: int) -> None:
        self._call("on_test_batch_begin", step)

    def test_batch_end(self, step: int, logs: dict[str, float]) -> None:
        self._call("on_test_batch_end", step, logs)

    def test_end(self, logs: dict[str, float]) -> None:
        self._call("on_test_end", logs)
        self._send()

    def predict_begin(self) -> None:
        self._call("on_predict_begin")

    def predict_batch_begin(self, step: int) -> None:
        self._call("on_predict_batch_begin", step)

    def predict_batch_end(self, step: int, outputs: Any) -> None:
        self._call("on_predict_batch_end", step, {"outputs": outputs})

    def predict_end(self) -> None:
        self._call("on_predict_end")
        self._send()

    def _call(self, hook: str, *arguments: Any) -> None:
        # Sorted and rounded as Keras' own are: the last bits of a sum depend on how many steps a call has taken.
        *index, logs = arguments if arguments and isinstance(arguments[-1], dict) else (*arguments, {})
        logs = _rounded(logs)
        settles = hook in self._settled and self._cluster.num_workers > 1
        watched = settles and self._cluster.is_chief
        if watched:
            self._following.begin()
        with _silence(not self._cluster.is_chief):
            for callback in self._list.callbacks:
                with self._alone(callback, hook):
                    getattr(callback, hook)(*index, logs)
        if watched:
            self._following.end()
        if settles:
            self._settle()

    @contextlib.contextmanager
    def _alone(self, callback: keras.callbacks.Callback, hook: str) -> Iterator[None]:
        if self._cluster.num_workers == 1 or broadcast.runs_on_all_workers(callback):
            yield
            return
        advice = "set on_all_workers = True on the callback, and evaluate by tfdist.evaluate(cluster, model, ...)"
        with collective_guard.alone(f"{type(callback).__name__}.{hook}", advice), local(self._model):
            yield

    def _settle(self) -> None:
        """Makes the workers agree: any one stops all, and the chief's variables and learning rate are everyone's."""
        if self._cluster.num_workers == 1:
            return
        rate = self._settable_rate()
        mine = 0.0 if rate is None else float(keras.ops.convert_to_numpy(rate))
        workers = self._gather([float(self.stop()), mine, float(self._following.changed)])
        self._model.stop_training = bool(np.any(workers[:, 0]))
        if workers[0, 2]:
            self._following.copy()
        if rate is not None and workers[0, 1] != mine:
            rate.assign(workers[0, 1])

    def _send(self) -> None:
        if self._cluster.num_workers > 1 and not self._training:
            broadcast.broadcast_attributes(self._cluster, self._kept, self._baseline)

    def _settable_rate(self) -> keras.Variable | None:
        rate = getattr(self._optimizer, "learning_rate", None)
        return rate if isinstance(rate, keras.Variable) else None

    def _warn(self, text: str) -> None:
        print(f"tfdist: worker {self._cluster.rank}: {text}", file=sys.stderr, flush=True)

    def _warn_of_loss(self, name: str, attribute: str, value: Any) -> None:
        """Says once which attribute of a user's callback a checkpoint cannot hold."""
        callback, attribute = state.named(self._kept)[name], f"{name}.{attribute}"
        if attribute not in self._lost and not type(callback).__module__.startswith("keras."):
            self._lost.add(attribute)
            self._warn(
                f"{attribute} ({type(value).__name__}) is not kept in checkpoints, which hold numbers, texts, arrays, "
                "lists and dicts of callbacks: after an interruption it is what on_train_begin makes of it"
            )


def _rounded(logs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(np.float32(value)) if isinstance(value, float) else value for name, value in sorted(logs.items())
    }


@contextlib.contextmanager
def _silence(wanted: bool) -> Iterator[None]:
    """Keeps Keras' own callbacks from printing, where the chief prints the same."""
    if not wanted or not keras.config.is_interactive_logging_enabled():
        yield
        return
    keras.config.disable_interactive_logging()
    try:
        yield
    finally:
        keras.config.enable_interactive_logging()


@contextlib.contextmanager
def local(model: keras.Model) -> Iterator[None]:
    """Within, Keras' own `model.predict` runs on this worker, with all data; what would sum over workers is refused."""
    before = model._distribute_strategy
    model._distribute_strategy = None  # Whatever is current: outside of scopes, that of code which knows of none.
    refused = ("fit", "evaluate", "train_on_batch", "test_on_batch")
    for name in refused:
        vars(model)[name] = lambda *args, name=name, **keywords: collective_guard.check(f"model.{name}")
    try:
        yield
    finally:
        model._distribute_strategy = before
        for name in refused:
            del vars(model)[name]
