"""When periodic actions are due, and how many steps the next execution may take. Imports no TensorFlow."""

import dataclasses
import math
from pathlib import Path

from tfdist import config as config_lib
from tfdist.checkpoint import directory
from tfdist.report import files


def next_due(every: config_lib.Every, step: int, steps_per_epoch: int) -> int | None:
    """Returns the first step after `step` at which an action with the interval `every` is due, or None."""
    due = [epoch * steps_per_epoch for epoch in every.after or ()]
    if every.steps is not None:
        due.append(_next_multiple(float(every.steps), step))
    if every.epochs is not None:
        due.append(_next_multiple(max(1.0, every.epochs * steps_per_epoch), step))
    return min((one for one in due if one > step), default=None)


def is_due(every: config_lib.Every, step: int, steps_per_epoch: int) -> bool:
    """Returns whether an action with the interval `every` is due after `step`."""
    return step > 0 and next_due(every, step - 1, steps_per_epoch) == step


def is_ever_due(every: config_lib.Every) -> bool:
    """Returns whether the interval `every` names any step or epoch."""
    return next_due(every, 0, 1) is not None


def stays(every: config_lib.Every, checkpoints: Path, steps_per_epoch: int, step: int) -> bool:
    """Returns whether the checkpoint of `step` is never removed: by the steps of an epoch now, or when it was saved."""
    if is_due(every, step, steps_per_epoch):
        return True
    if every.epochs is None and not every.after:
        return False
    try:
        saved = files.read_json(directory.step_path(checkpoints, step) / "manifest.json")["state"]["steps_per_epoch"]
        return saved > 0 and is_due(every, step, saved)
    except OSError:  # Not known at the moment.
        return True
    except (ValueError, LookupError, TypeError):
        return False


def _next_multiple(period: float, step: int) -> int:
    count = math.floor(step / period)
    while (due := math.floor(count * period + 0.5)) <= step:
        count += 1
    return due


@dataclasses.dataclass(slots=True)
class ExecutionLength:
    """Chooses the steps of the next execution, so that it takes about `execution_seconds`; the same on all workers."""

    execution_seconds: float
    # Steps of the last execution.
    steps: int = 1
    # Executions so far. The first one compiles, so its time is ignored.
    executions: int = 0

    def next_steps(self, max_steps: int) -> int:
        return max(1, min(self.steps, max_steps))

    def record(self, steps: int, seconds: float) -> None:
        """Records that an execution of `steps` took `seconds`, a value that is equal on all workers."""
        self.executions += 1
        if self.executions > 1 and seconds > 0:
            # The growth is limited: the time of one step is a poor estimate for many.
            self.steps = max(1, min(int(self.execution_seconds * steps / seconds), 32 * steps))
