"""Ends a run after some epochs as a signal would, so that it can continue later: `config.cluster.pause_epochs`."""

import dataclasses

from tfdist.cluster import interruption
from tfdist.report.reporter import Reporter
from tfdist.training import run as run_lib
from tfdist.training.execution import StopRequested


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Stops all workers at the same step, one after that of the epoch, which is then evaluated and reported."""

    run: run_lib.Run
    report: Reporter

    @property
    def step(self) -> int:
        """The step after which the run is saved and ends."""
        return round(self.run.config.cluster.pause_epochs * self.run.steps_per_epoch) + 1

    def boundaries(self, step: int) -> list[int]:
        """Returns the next step after `step` at which an execution must end; the same on every worker."""
        return [self.step] if step < self.step < self.run.total_steps else []

    def write_due(self, step: int) -> None:
        """Called by every worker, at the start and after each execution; raises StopRequested at the pause."""
        if self.step <= step < self.run.total_steps:
            self.run.stop.reason = interruption.PAUSE
            raise StopRequested

    def close(self) -> None:
        """Does nothing: there is no file."""
