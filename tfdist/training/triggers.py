"""When periodic actions are due, and how many steps the next execution may take. Imports no TensorFlow."""

import dataclasses
import math

from tfdist import config as config_lib


@dataclasses.dataclass(frozen=True, slots=True)
class DueSteps:
    """The steps after which an action is due: every N steps or epochs, and after given epochs."""

    every: config_lib.Every
    steps_per_epoch: int

    def next_after(self, step: int) -> int | None:
        """Returns the first step after `step` at which the action is due, or None."""
        due = [epoch * self.steps_per_epoch for epoch in self.every.after or ()]
        if self.every.steps is not None:
            due.append(_next_multiple(float(self.every.steps), step))
        if self.every.epochs is not None:
            due.append(_next_multiple(max(1.0, self.every.epochs * self.steps_per_epoch), step))
        return min((one for one in due if one > step), default=None)

    def is_due(self, step: int) -> bool:
        """Returns whether the action is due after `step`."""
        return step > 0 and self.next_after(step - 1) == step


def _next_multiple(period: float, step: int) -> int:
    count = math.floor(step / period)
    while (due := math.floor(count * period + 0.5)) <= step:
        count += 1
    return due


@dataclasses.dataclass(slots=True)
class ExecutionLength:
    """Chooses the steps of the next execution, so that it takes about `execution_seconds`; the same on all workers."""

    execution_seconds: float
    # Steps of the next execution, unless it must end earlier.
    steps: int = 1
    # Executions so far. The first one compiles, so its time is ignored.
    executions: int = 0

    def choose_steps(self, max_steps: int) -> int:
        return max(1, min(self.steps, max_steps))

    def record(self, steps: int, seconds: float) -> None:
        """Records that an execution of `steps` took `seconds`, which are equal on all workers."""
        self.executions += 1
        if self.executions > 1 and seconds > 0:
            # The growth is limited: the time of one step is a poor estimate for many.
            self.steps = max(1, min(int(self.execution_seconds * steps / seconds), 32 * steps))
