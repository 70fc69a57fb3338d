"""`config.report.profile`: a profile of some steps for TensorBoard, on the chief only.

Profiling two workers at the same time corrupts memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.schema import Config
from tfdist.training.loop_services import LoopAction, LoopServices

if TYPE_CHECKING:
    from tfdist.report.reporter import Reporter
    from tfdist.training.run import Run
    from tfdist.training.state import TrainingState


def find_errors(config: Config) -> Iterator[str]:
    """Yields an error if `profile` is not an interval of steps."""
    steps = config.report.profile
    if steps is not None and not (
        len(steps) == 2 and all(type(step) is int for step in steps) and 1 <= steps[0] <= steps[1]
    ):
        yield f"report.profile must be [first, last], two steps counted from 1. Received: {steps}"


def loop_actions(run: Run, report: Reporter) -> list[Profile]:
    """Returns the object that starts and ends the profile between executions, if one is configured."""
    return [] if run.config.report.profile is None else [Profile(run=run, report=report)]


@dataclasses.dataclass(slots=True, kw_only=True)
class Profile(LoopAction):
    """Profiles the steps on the chief only."""

    run: Run
    report: Reporter
    active: bool = False

    def boundaries(self, step: int) -> list[int]:
        """Returns the steps after which the profile starts and ends, as far as they are after `step`."""
        first, last = self.run.config.report.profile
        return [one for one in (first - 1, last) if one > step]

    def act_if_due(self, services: LoopServices, state: TrainingState) -> None:
        """Starts or ends the profile after `state.step`."""
        first, last = self.run.config.report.profile
        due = first - 1 <= state.step < last and self.run.cluster.is_chief and self.run.workdir is not None
        if due != self.active:
            self._switch(due)

    def close(self) -> None:
        """Ends and writes a profile that is being taken."""
        if self.active:
            self._switch(False)

    def _switch(self, on: bool) -> None:
        import tensorflow as tf

        from tfdist.report import tensorboard_events

        folder = self.run.workdir / tensorboard_events.TENSORBOARD / tensorboard_events.TRAIN
        try:
            self.active = False
            tf.profiler.experimental.start(str(folder)) if on else tf.profiler.experimental.stop()
            self.active = on
        except tf.errors.OpError as error:
            self.report.warning(f"config.report.profile={self.run.config.report.profile}: no profile: {error.message}")
