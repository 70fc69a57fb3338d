"""`config.consistency` and `config.report.state_hash`: all replicas must have the same state, whose hash is recorded.

The replicas are compared at the start, when due, and before each save, so no run resumes from a state in which they
differ.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfdist.training.loop_services import LoopAction, LoopServices

if TYPE_CHECKING:
    from tfdist.report.reporter import Reporter
    from tfdist.training.consistency.comparison import Comparison
    from tfdist.training.execution import Execution
    from tfdist.training.run import Run
    from tfdist.training.state import TrainingState
    from tfdist.training.triggers import DueSteps


def loop_actions(run: Run, report: Reporter) -> list[ReplicaCheck]:
    """Returns the object that compares the replicas between executions."""
    from tfdist.training.consistency import comparison

    config = run.config
    records = config.report.state_hash != "none" and run.workdir is not None
    if run.cluster.num_replicas == 1 and not records:
        return []
    sections = [config.consistency, *([config.report] if config.report.state_hash == "reports" else [])]
    return [
        ReplicaCheck(
            comparison=comparison.Comparison(cluster=run.cluster, variables=run.variables),
            due=[run.due(section.every) for section in sections],
            records=records,
        )
    ]


@dataclasses.dataclass(slots=True, kw_only=True)
class ReplicaCheck(LoopAction):
    """Ends the run with ReplicaMismatchError if the replicas differ."""

    comparison: Comparison
    due: list[DueSteps]
    # Whether the hash of the state is recorded in metrics.jsonl.
    records: bool
    # Executions of this start so far.
    executions: int = 0
    # The step of the last record.
    recorded: int | None = None

    def boundaries(self, step: int) -> list[int]:
        """Returns the next step of each interval."""
        return [one for due in self.due if (one := due.next_after(step)) is not None]

    def after_execution(self, services: LoopServices, state: TrainingState, execution: Execution) -> None:
        """Counts the executions."""
        self.executions += 1

    def act_if_due(self, services: LoopServices, state: TrainingState) -> None:
        """Compares the replicas if this is due, after the first execution, and at the end of the run.

        The first execution is one step, which is enough to reveal code of the model that changes only one replica.
        """
        if any(due.is_due(state.step) for due in self.due) or services.run.ends_at(state.step) or self.executions == 1:
            self.check(services, state)

    def check(self, services: LoopServices, state: TrainingState) -> None:
        """Compares the replicas, and records the hash. Collective; raises ReplicaMismatchError."""
        value = self.comparison.check(state.step)
        if self.records:
            from tfdist.training.consistency import hashing

            first = state.step if self.recorded is None else self.recorded
            examples = [step * services.run.feed.sizes.global_batch for step in (first, state.step)]
            services.report.state(state.step, value, hashing.NAME, examples)
            self.recorded = state.step
