"""The losses and metrics that a run has reported, to compare with those of the same steps. Imports no TensorFlow."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.report import metrics_file, read_back

# A mean depends on how many steps were in an execution, which depends on their times: sums of float64.
_RELATIVE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The records of a run, by step."""

    training: Mapping[int, Mapping[str, Any]]
    evaluations: Mapping[int, Mapping[str, Any]]

    def steps_before(self, step: int) -> int | None:
        """Returns the number of steps over which the report after `step` has means; None: there is no report."""
        return self.training[step]["steps"] if step in self.training else None

    def differences(self, kind: str, step: int, values: Mapping[str, float]) -> Iterator[str]:
        """Yields a line for each of `values` that was reported otherwise; kind: "training" or "evaluations"."""
        record = getattr(self, kind)[step]
        for name, value in values.items():
            old = record.get(name)  # None: NaN or infinite.
            equal = not math.isfinite(value) if old is None else math.isclose(old, value, rel_tol=_RELATIVE)
            if not equal:
                yield f"{kind}, step {step}: {name} is {value}, and metrics.jsonl has {old}"


def read(workdir: Path) -> Reports:
    """Reads the reports of a workdir; the last one of each step."""
    records = read_back.read_records(workdir / metrics_file.METRICS)
    training = {one["step"]: one for one in records if one.get("kind") == "train"}
    evaluations = {one["step"]: one for one in records if one.get("kind") == "evaluation"}
    return Reports(training=training, evaluations=evaluations)
