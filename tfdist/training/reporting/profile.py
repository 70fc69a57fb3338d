"""Profiles some steps for TensorBoard: `config.report.profile`."""

import dataclasses

import tensorflow as tf

from tfdist.report import tensorboard_events
from tfdist.report.reporter import Reporter
from tfdist.training import run as run_lib


@dataclasses.dataclass(slots=True, kw_only=True)
class Profile:
    """Profiles the steps on the chief only: profiling two workers at the same time corrupts memory."""

    run: run_lib.Run
    report: Reporter
    active: bool = False

    def boundaries(self, step: int) -> list[int]:
        """Returns the next steps after `step` at which an execution must end; the same on every worker."""
        first, last = self.run.config.report.profile
        return [one for one in (first - 1, last) if one > step]

    def write_due(self, step: int) -> None:
        """Starts or ends the profile after `step`; called by every worker, at the start and after each execution."""
        first, last = self.run.config.report.profile
        due = first - 1 <= step < last and self.run.cluster.is_chief and self.run.workdir is not None
        if self.active and not due:
            self.close()
        elif due and not self.active:
            try:
                folder = self.run.workdir / tensorboard_events.TENSORBOARD / tensorboard_events.TRAIN
                tf.profiler.experimental.start(str(folder))
                self.active = True
            except tf.errors.OpError as error:
                self.report.warning(f"The steps from {first} to {last} cannot be profiled: {error.message}")

    def close(self) -> None:
        """Ends and writes a profile that is being taken."""
        if self.active:
            self.active = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                self.report.warning(f"The profile cannot be written: {error.message}")
