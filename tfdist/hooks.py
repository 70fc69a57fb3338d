"""What the loop tells those who want to follow it: the moments of a run, in Keras' order."""

from typing import Any


class Hooks:
    """Does nothing at any moment; callbacks override what they need. Called on every worker alike.

    `epoch` and `step` (within the epoch or the evaluation) count from 0; `logs` are means over all examples so far, the
    same on every worker.
    """

    # A call ends after so many steps, for callbacks that want to see single batches; None: none does.
    every_steps: int | None = None

    def train_begin(self) -> None:
        """Before the first step of this start."""

    def train_end(self, logs: dict[str, float]) -> None:
        """After the last step; `logs` are those of the last epoch."""

    def epoch_begin(self, epoch: int) -> None:
        """Before the first step of an epoch."""

    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """After an epoch and its evaluation, whose values are in `logs` as `val_...`."""

    def batch_begin(self, step: int) -> None:
        """Before a call, whose first step this is; where `every_steps` is set."""

    def batch_end(self, step: int, logs: dict[str, float]) -> None:
        """After a call, whose last step this is; where `every_steps` is set."""

    def test_begin(self) -> None:
        """Before an evaluation."""

    def test_batch_begin(self, step: int) -> None:
        """Before a call of an evaluation; where `every_steps` is set."""

    def test_batch_end(self, step: int, logs: dict[str, float]) -> None:
        """After a call of an evaluation; where `every_steps` is set."""

    def test_end(self, logs: dict[str, float]) -> None:
        """After an evaluation."""

    def stop(self) -> bool:
        """Whether the run shall end here, the same on every worker; asked after `batch_end` and `epoch_end`."""
        return False

    @property
    def history(self) -> Any:
        """What `fit` returns."""
        return None
