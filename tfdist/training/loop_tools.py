"""`LoopTools`: what the loop works with, made once per start."""

import dataclasses
import time
from collections.abc import Callable

from tfdist.checkpoint.async_writer import AsyncCheckpointer
from tfdist.checkpoint.workdir_lock import WorkdirLock
from tfdist.report.reporter import Reporter
from tfdist.training import execution
from tfdist.training import run as run_lib
from tfdist.training.consistency import finite, replicas
from tfdist.training.consistency.replicas import ReplicaConsistencyCheck
from tfdist.training.execution import RunSteps, StepRunner
from tfdist.training.reporting.tensorboard_extras import TensorBoardExtras


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopTools:
    """The objects that the loop uses besides the state: report, checkpointer, compiled steps and checks."""

    run: run_lib.Run
    report: Reporter
    # None except on the chief.
    checkpointer: AsyncCheckpointer | None
    # None except on the chief of a run with a workdir.
    lock: WorkdirLock | None
    train_steps: StepRunner
    evaluation_steps: StepRunner
    # Returns which variable is not finite, as a sentence; "": none. The same on every worker.
    not_finite: Callable[[], str]
    consistency: ReplicaConsistencyCheck
    tensorboard: TensorBoardExtras
    # When the run was opened, as `time.monotonic`.
    started: float = dataclasses.field(default_factory=time.monotonic)


def make_tools(
    run: run_lib.Run,
    report: Reporter,
    checkpointer: AsyncCheckpointer | None,
    lock: WorkdirLock | None = None,
    keep: Callable[[RunSteps], RunSteps] | None = None,
) -> LoopTools:
    """Makes the tools of the loop; `keep`: see `execution.evaluation_steps`."""
    return LoopTools(
        run=run,
        report=report,
        checkpointer=checkpointer,
        lock=lock,
        train_steps=execution.training_steps(run),
        evaluation_steps=execution.evaluation_steps(run, keep),
        not_finite=finite.make_finite_check(run.cluster, run.variables),
        consistency=replicas.make_check(run.cluster, run.variables, run.config.agreement, report.event),
        tensorboard=TensorBoardExtras(run=run, report=report),
    )


def make_silent_tools(run: run_lib.Run, keep: Callable[[RunSteps], RunSteps] | None = None) -> LoopTools:
    """Makes tools that report nothing, for an evaluation whose values are returned to the caller; as `make_tools`."""
    report = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        console=None,
    )
    return make_tools(run, report, None, keep=keep)
