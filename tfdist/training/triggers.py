"""When something is due, and how many steps the next call may take."""

import dataclasses
import math

from tfdist import config as config_lib


def next_due(every: config_lib.Every, step: int, steps_per_epoch: int) -> int | None:
    """Returns the first step after `step` at which something that happens `every` so often is due, or None."""
    periods = []
    if every.steps is not None:
        periods.append(float(every.steps))
    if every.epochs is not None:
        periods.append(max(1.0, every.epochs * steps_per_epoch))
    return min((_next_multiple(period, step) for period in periods), default=None)


def is_due(every: config_lib.Every, step: int, steps_per_epoch: int) -> bool:
    """Whether something that happens `every` so often is due right after `step`."""
    return step > 0 and next_due(every, step - 1, steps_per_epoch) == step


def _next_multiple(period: float, step: int) -> int:
    count = math.floor(step / period)
    while (due := math.floor(count * period + 0.5)) <= step:
        count += 1
    return due


@dataclasses.dataclass(slots=True)
class ExecutionLength:
    """Chooses how many steps a call takes, so that it lasts about `call_seconds`; the same on all workers."""

    call_seconds: float
    # Steps of the last call.
    steps: int = 1
    # Calls made; the first compiles, so its time says nothing.
    calls: int = 0

    def next_steps(self, most: int) -> int:
        """Returns the steps of the next call, at most `most`."""
        return max(1, min(self.steps, most))

    def measured(self, steps: int, seconds: float) -> None:
        """Learns that a call of `steps` took `seconds`, a figure that all workers have agreed on."""
        self.calls += 1
        if self.calls > 1 and seconds > 0:
            # Growing by leaps at most: a call of one step says little about many.
            self.steps = max(1, min(int(self.call_seconds * steps / seconds), 32 * steps))
