"""`config.report.profile`: a profile of some steps for TensorBoard, on the chief only.

Profiling two workers at the same time corrupts memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tfdist.config.schema import Config

if TYPE_CHECKING:
    from tfdist.report.reporter import Reporter
    from tfdist.training.run import Run


def refuse(config: Config) -> Iterator[str]:
    """Yields if the steps are no interval."""
    steps = config.report.profile
    if steps is not None and not (
        len(steps) == 2 and all(type(step) is int for step in steps) and 1 <= steps[0] <= steps[1]
    ):
        yield f"report.profile must be [first, last], two steps counted from 1. Received: {steps}"


def extras(run: Run, report: Reporter) -> list[Any]:
    """Returns the object that takes the profile between executions, if one is wanted."""
    if run.config.report.profile is None:
        return []
    from tfdist.training.reporting.tensorboard_extras import TensorBoardExtras

    return [TensorBoardExtras(run=run, report=report)]
