"""`NoCallbacks`: the callbacks of a run as the loop sees them, for a run without any."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class NoCallbacks:
    """The callbacks of a run without any, on one worker. `callback_runner.CallbackRunner` calls those of other runs.

    Every worker calls the same methods in the same order. Indices of epochs and of steps (within the epoch, evaluation
    or prediction) count from 0. `logs` are values over all examples so far, the same on every worker.
    """

    # Whether there are callbacks: executions then end with the epochs.
    active = False
    # Keras': the steps between batch hooks, and to the end that a callback has requested.
    steps_per_execution = 1
    # True if TerminateOnNaN stopped training: the last state is not saved.
    stopped_on_nan = False
    # The class of the callback that stopped training, on the worker where it runs; "": none.
    stopped_by = ""
    # The variables that callbacks refer to, and that a checkpoint holds for them if they change.
    held: Sequence[Any] = ()

    def __init__(self):
        # "train", "test" or "predict" -> interval of its batch hooks, in steps; without batch hooks there is no entry.
        self.batch_interval: dict[str, int] = {}

    def begins_batch(self, kind: str, step: int) -> bool:
        """Returns True if the begin hook of a batch of `kind` is due before `step`."""
        return kind in self.batch_interval and step % self.batch_interval[kind] == 0

    def ends_batch(self, kind: str, step: int, steps: int) -> bool:
        """Returns True if the end hook of a batch of `kind` is due after `step`, of `steps` in total."""
        return kind in self.batch_interval and ((step + 1) % self.batch_interval[kind] == 0 or step + 1 == steps)

    def last_of_batch(self, kind: str, step: int) -> int:
        """Returns the index for the end hook after `step`: as in Keras, as if the last interval were complete."""
        return step - step % self.batch_interval[kind] + self.batch_interval[kind] - 1

    def wants_progress(self, kind: str) -> bool:
        """Returns True if `progress` of "train", "test" or "predict" shows anything; values are computed for it."""
        return False

    def progress(self, done: int, logs: dict[str, float]) -> None:
        """Moves the bar to `done` steps of the epoch, evaluation or prediction."""

    def stop(self, kind: str = "train") -> bool:
        """Returns True if a callback has requested the end of "train", "test" or "predict"; equal on all workers."""
        return False

    def ends(self, kind: str, steps: int) -> bool:
        """Returns True if a callback ends `kind` after `steps` of the epoch, evaluation or prediction, at least 1."""
        return self.stop(kind) and (steps % self.steps_per_execution == 0 or self.stopped_on_nan)

    def steps_to_hook(self, kind: str, step: int) -> int | None:
        """Returns the steps from `step` to a batch hook, or to the end that a callback has requested; None: neither."""
        if kind in self.batch_interval or self.stop(kind):
            return self.steps_per_execution - step % self.steps_per_execution
        return None

    def call(self, hook: str, index: int | None = None, logs: dict[str, Any] | None = None) -> None:
        """Calls a hook of all callbacks; all workers end if one does.

        Args:
            hook: such as "on_epoch_end". `train_begin` and `train_end` call the two hooks of the whole training.
            index: the epoch or the step, for hooks that have one.
            logs: metric values by name; outputs for "on_predict_batch_end".
        """

    def train_begin(self, saved: Any = None, epoch: int | None = None, *, ended=False, saves=False) -> None:
        """Calls on_train_begin: before the first step, and before variables are restored from a checkpoint.

        Args:
            saved: what `state` returned, if a run is resumed; `ended`: from the checkpoint of its last step.
            epoch: the unfinished epoch in which the checkpoint was saved; None: it was saved between two epochs.
            saves: whether checkpoints are saved.
        """

    def train_end(self, logs: dict[str, float]) -> None:
        """Calls on_train_end after the last step, with the logs of the last epoch."""

    def nonfinite_loss(self, step: int, loss: float) -> bool:
        """Calls TerminateOnNaN after an execution whose loss is non-finite; returns whether training ends here."""
        return False

    def state(self, variables: Iterable[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns on the chief the callbacks' state without `variables`: JSON values, and arrays by name."""
        return {}, {}

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restores what `state` returned; called after variables were restored from the checkpoint."""
