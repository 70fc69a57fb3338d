"""`Hooks`: the hooks of Keras' training loop, which our loop calls."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


class Hooks:
    """What a run does at the hooks of Keras' loop: by default nothing; a feature may replace this object.

    Every worker calls the same methods in the same order. Indices of epochs and of steps (within the epoch, evaluation
    or prediction) count from 0. `logs` are values over all examples so far, the same on every worker. A `kind` is
    "train", "test" or "predict".
    """

    # Whether the hooks do anything: executions then end at the end of epochs.
    active = False
    # As in Keras: batch hooks are called, and a requested stop takes effect, every so many steps.
    steps_per_execution = 1
    # True if training was stopped because of a loss that is not finite: the last state is not saved.
    stopped_on_nan = False
    # The callback that stopped training, as messages name it; "" if there is none, or it does not run on this worker.
    stopped_by = ""
    # Variables that `state` saves in a checkpoint if they change.
    saved_variables: Sequence[Any] = ()

    def __init__(self):
        # Kind -> interval of its batch hooks, in steps; without batch hooks there is no entry.
        self.batch_interval: dict[str, int] = {}

    def before_steps(self, kind: str, step: int) -> None:
        """Calls the begin hook of a batch, if it is due before `step`."""
        if kind in self.batch_interval and step % self.batch_interval[kind] == 0:
            self.call(f"on_{kind}_batch_begin", step)

    def ends_batch(self, kind: str, step: int, steps: int) -> bool:
        """Returns True if the end hook of a batch is due after `step`, of `steps` in total."""
        return kind in self.batch_interval and ((step + 1) % self.batch_interval[kind] == 0 or step + 1 == steps)

    def after_steps(self, kind: str, step: int, steps: int, logs: Callable[[], dict[str, Any]]) -> None:
        """Calls the end hook of a batch, if due after `step` of `steps`, and moves the progress bar; both get `logs()`.

        As in Keras, the hook's index is the last step of the interval, even if that is cut short.
        """
        if self.ends_batch(kind, step, steps):
            interval = self.batch_interval[kind]
            self.call(f"on_{kind}_batch_end", step - step % interval + interval - 1, logs())
        if self.wants_progress(kind):
            self.progress(step + 1, logs())

    def wants_progress(self, kind: str) -> bool:
        """Returns True if `progress` shows anything; values are computed for it."""
        return False

    def progress(self, done: int, logs: dict[str, float]) -> None:
        """Moves the progress bar to `done` steps of the epoch, evaluation or prediction."""

    def stop_requested(self, kind: str = "train") -> bool:
        """Returns True if a stop of `kind` is requested; equal on all workers."""
        return False

    def ends(self, kind: str, steps: int) -> bool:
        """Returns True if `kind` stops after `steps` of the epoch (0 at its end), evaluation or prediction."""
        return self.stop_requested(kind) and (steps % self.steps_per_execution == 0 or self.stopped_on_nan)

    def steps_to_hook(self, kind: str, step: int) -> int | None:
        """Returns the number of steps from `step` to the next batch hook or requested stop; None: there is neither."""
        if kind in self.batch_interval or self.stop_requested(kind):
            return self.steps_per_execution - step % self.steps_per_execution
        return None

    def call(self, hook: str, index: int | None = None, logs: dict[str, Any] | None = None) -> None:
        """Calls a hook; if it requests a stop on one worker, all workers stop.

        Args:
            hook: such as "on_epoch_end". `train_begin` and `train_end` call the two hooks of the whole training.
            index: the epoch or the step, for hooks that have one.
            logs: metric values by name; outputs for "on_predict_batch_end".
        """

    def train_begin(self, saved: Any = None, epoch: int | None = None, *, ended=False, saves=False) -> None:
        """Calls on_train_begin: before the first step, and before variables are restored from a checkpoint.

        Args:
            saved: what `state` returned, if a run is resumed; `ended`: whether the checkpoint is that of its last step.
            epoch: the unfinished epoch in which the checkpoint was saved; None: it was saved between two epochs.
            saves: whether checkpoints are saved.
        """

    def train_end(self, logs: dict[str, float]) -> None:
        """Calls on_train_end after the last step, with the logs of the last epoch."""

    def nonfinite_loss(self, step: int, loss: float) -> bool:
        """Called after an execution whose loss is not finite; returns whether training ends here without an error."""
        return False

    def state(self, variables: Iterable[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state of the hooks, without `variables`: JSON values, and arrays by name. Called on the chief."""
        return {}, {}

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned; called after variables were restored from the checkpoint."""
