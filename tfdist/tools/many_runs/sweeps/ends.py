"""How the runs of a sweep stand: which are finished, stopped or failed, and their values of the metric."""

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

from tfdist.cluster import interruption
from tfdist.report import files, reporter
from tfdist.tools import child_runs
from tfdist.tools.many_runs import find, run_state
from tfdist.tools.many_runs.sweeps import plan as plans

# In the workdir of a run: what its processes print.
LOG = "output.log"
# Characters of a last line.
_LONGEST_LINE = 300
_LAST_BYTES = 2**14
# Exit codes after which the same command goes on from the newest checkpoint; negative: killed by a signal.
_MAY_GO_ON = (*interruption.EXITS_SAVED, interruption.EXIT_PEER_LOST, 130)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How one run of a sweep stands."""

    name: str
    workdir: Path
    # "new": no process has ended, or none has begun; otherwise as in `run_state.RunState`.
    state: str = "new"
    epoch: float | None = None
    # The best value of the metric over all evaluations; None: there is none.
    value: float | None = None
    # Why it has failed, in a line.
    trouble: str = ""


def write(workdir: Path, code: int) -> None:
    """Writes how the process of a run has ended; raises OSError."""
    files.write_json(str(workdir / plans.END), {"code": code, "text": last_line(workdir / LOG)})


def read(plan: plans.Plan, workdir: Path, name: str) -> RunEnd:
    """Reads how a run of the sweep in `workdir` stands; a directory that is damaged counts as failed."""
    workdir = workdir / name
    try:
        end = files.read_json(str(workdir / plans.END)) or {}
        found = [run_state.read(each) for each in _workdirs(workdir)]
        given = [record.get(plan.metric) for record in evaluations(workdir)]
        values = [value for value in given if isinstance(value, int | float) and math.isfinite(value)]
    except ValueError as error:
        return RunEnd(name=name, workdir=workdir, state="failed", trouble=str(error))
    state = found[-1].state if found else "new"
    code = end.get("code")
    if state != "running" and plan.script and code == 0:  # Its last fit is finished, and so is what follows.
        state = "finished"
    elif state == "finished" and plan.script:
        state = "stopped"
    if code is not None and state not in ("running", "finished"):
        state = "failed" if code > 0 and code not in _MAY_GO_ON else "lost" if code < 0 else "stopped"
    elif state == "failed":  # The process that could say so has gone.
        state = "lost"
    return RunEnd(
        name=name,
        workdir=workdir,
        state=state,
        epoch=found[-1].epoch if found else None,
        value=(max if plan.mode == "max" else min)(values, default=None),
        trouble=end.get("text", "") if state == "failed" else "",
    )


def evaluations(workdir: Path) -> list[dict[str, Any]]:
    """Returns the records of the evaluations of a run, in order.

    Raises ValueError if the run's metrics.jsonl cannot be read.
    """
    return [record for each in _workdirs(workdir) for record in child_runs.reports(each, "evaluation")]


def check_metric(plan: plans.Plan, workdir: Path) -> None:
    """Raises a ValueError if the runs have evaluations, but none has the metric."""
    records: list[dict[str, Any]] = []
    for name in plan.runs:
        with contextlib.suppress(ValueError):  # A damaged one counts as failed.
            records += evaluations(workdir / name)
    if records and not any(plan.metric in record for record in records):
        known = sorted({*records[-1]} - reporter.RESERVED)
        raise ValueError(f"--metric={plan.metric}: no evaluation has this value. They have: {', '.join(known)}.")


def _workdirs(workdir: Path) -> list[Path]:
    """Returns the workdir of a run, or those of a script's calls of fit; raises ValueError if one cannot be read."""
    problems: list[str] = []
    found = list(find.workdirs(workdir, problems)) if workdir.exists() else []
    if problems:
        raise ValueError(problems[0])
    return found


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty, cut to a length that can be printed; "": there is none."""
    content = files.read_file(log, last=_LAST_BYTES) or b""
    lines = [line.strip() for line in content.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""
