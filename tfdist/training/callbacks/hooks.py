"""What the loop tells those who want to follow it: the moments of a run, in Keras' order."""

from typing import Any

import numpy as np


class Hooks:
    """Does nothing at any moment; `callbacks.KerasHooks` tells Keras callbacks. Called on every worker alike.

    `epoch` and `step` (within the epoch, the evaluation or the prediction) count from 0; `logs` are values over all
    examples so far, the same on every worker.
    """

    # Whether anybody listens: calls then end with the epochs.
    listens: bool = False
    # Of "train", "test" and "predict", those of which someone wants to see each batch, or rather each so many steps.
    each_steps: dict[str, int]
    # What the run's own console says: "all", "events" (no intervals, no evaluations) or "nothing".
    console: str = "all"
    # Whether TerminateOnNaN has ended the training: its last state is not worth saving.
    terminated: bool = False

    def __init__(self) -> None:
        self.each_steps = {}

    def begins_batch(self, kind: str, step: int) -> bool:
        """Whether the batch hooks of `kind` are to be told that a call begins with `step`."""
        return kind in self.each_steps and step % self.each_steps[kind] == 0

    def ends_batch(self, kind: str, step: int, steps: int) -> bool:
        """Whether they are to be told that a call has ended with `step`, of `steps` in all."""
        return kind in self.each_steps and ((step + 1) % self.each_steps[kind] == 0 or step + 1 == steps)

    def last_of_batch(self, kind: str, step: int) -> int:
        """The index that they are told when a call has ended with `step`: as in Keras, as if none were missing."""
        return step - step % self.each_steps[kind] + self.each_steps[kind] - 1

    def train_begin(self, saved: dict[str, Any] | None = None, epoch: int | None = None) -> None:
        """Before the first step of this start, and before variables come from a checkpoint.

        Args:
            saved: what `state` returned, where a run is resumed.
            epoch: the epoch that was begun then and has not ended.
        """

    def resume(self, saved: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """After variables have come from a checkpoint, with what `state` returned when it was made."""

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a checkpoint shall hold of the callbacks: JSON values, and arrays by name. Asked on the chief alone."""
        return {}, {}

    def train_end(self, logs: dict[str, float]) -> None:
        """After the last step; `logs` are those of the last epoch."""

    def epoch_begin(self, epoch: int) -> None:
        """Before the first step of an epoch."""

    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """After an epoch and its evaluation, whose values are in `logs` as `val_...`."""

    def batch_begin(self, step: int) -> None:
        """Before a step or so many; where `each_steps` says so, as for all hooks of batches."""

    def batch_end(self, step: int, logs: dict[str, float]) -> None:
        """After a step or so many, of which this is the last."""

    def shows(self, kind: str) -> bool:
        """Whether `progress` of "train", "test" or "predict" shows anything, for which values are worked out."""
        return False

    def progress(self, done: int, logs: dict[str, float]) -> None:
        """After a call, where `shows` says so: so many steps of the epoch, evaluation or prediction are done."""

    def not_finite(self, step: int, loss: float) -> bool:
        """After a call whose loss is not finite; returns whether training ends here as if it were finished."""
        return False

    def test_begin(self) -> None:
        """Before an evaluation."""

    def test_batch_begin(self, step: int) -> None:
        """Before a step of an evaluation or so many."""

    def test_batch_end(self, step: int, logs: dict[str, float]) -> None:
        """After a step of an evaluation or so many."""

    def test_end(self, logs: dict[str, float]) -> None:
        """After an evaluation."""

    def predict_begin(self) -> None:
        """Before a prediction."""

    def predict_batch_begin(self, step: int) -> None:
        """Before a step of a prediction or so many."""

    def predict_batch_end(self, step: int, outputs: Any) -> None:
        """After a step of a prediction or so many, which gave `outputs`."""

    def predict_end(self) -> None:
        """After a prediction."""

    def stop(self) -> bool:
        """Whether the run shall end here, the same on every worker; asked after `batch_end` and `epoch_end`."""
        return False

    @property
    def history(self) -> Any:
        """What `fit` returns."""
        return None
