"""`LoopServices`: what the loop works with, made once per start; and `LoopAction`: what a feature does in the loop."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Features are imported before TensorFlow.
    from tfdist.checkpoint.async_writer import AsyncCheckpointer
    from tfdist.checkpoint.workdir_lock import WorkdirLock
    from tfdist.report.ledger import Ledger
    from tfdist.report.reporter import Reporter
    from tfdist.training.execution import Execution, StepRunner
    from tfdist.training.run import Run
    from tfdist.training.state import TrainingState


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopServices:
    """The objects that the loop uses besides the state: report, checkpointer, compiled steps and actions."""

    run: Run
    report: Reporter
    # These two are None except on the chief of a run with a workdir.
    checkpointer: AsyncCheckpointer | None
    lock: WorkdirLock | None
    train_runner: StepRunner
    evaluation_runner: StepRunner
    # What features do between executions.
    loop_actions: list[LoopAction]
    # Records the progress of this start, and its end.
    ledger: Ledger


class LoopAction:
    """What a feature does between the executions of a run; by default nothing.

    Every worker calls the same methods in the same order. `services` has the run, the report and the checkpointer.
    """

    def boundaries(self, step: int) -> list[int]:
        """Returns the next steps after `step` at which an execution must end; the same on every worker."""
        return []

    def after_execution(self, services: LoopServices, state: TrainingState, execution: Execution) -> None:
        """Handles the result of an execution whose last step is `state.step`; may raise an error to end the run."""

    def act_if_due(self, services: LoopServices, state: TrainingState) -> None:
        """Acts if it is due after `state.step`; called at the start, and after each execution."""

    def check(self, services: LoopServices, state: TrainingState) -> None:
        """Checks the state at the start, before each save, and in `--mode=eval`; may raise an error to end the run."""

    def close(self) -> None:
        """Called at the end, however the run ends."""
