"""`LoopTools` that report nothing."""

from collections.abc import Callable

from tfdist.report.reporter import Reporter
from tfdist.training import loop_tools
from tfdist.training.execution import RunSteps
from tfdist.training.loop_tools import LoopTools
from tfdist.training.run import Run


def make_silent_tools(run: Run, keep: Callable[[RunSteps], RunSteps] | None = None) -> LoopTools:
    """As `loop_tools.make_tools`, for an evaluation whose values are returned to the caller."""
    report = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        console=None,
    )
    return loop_tools.make_tools(run, report, None, keep=keep)
