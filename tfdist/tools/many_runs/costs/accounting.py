"""What Slurm's accounting says of the jobs of runs: when each start waited and ran, and its energy."""

import contextlib
import dataclasses
import time
from collections.abc import Iterable

from tfdist.tools import child_runs

# Seconds in which sacct must answer.
_ANSWER_SECONDS = 20.0
_FIELDS = "JobID,Submit,Start,End,ConsumedEnergyRaw"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """One start of a job, times in seconds since 1970. A requeued job has several."""

    job: str
    submitted: float
    started: float
    # Now, while it runs.
    ended: float
    # Of all its nodes; 0: not measured.
    joules: float = 0.0


def job_starts(jobs: Iterable[str]) -> list[JobStart]:
    """Returns the starts of these jobs, "7" or "7_3", in order; [] without sacct, or if it does not answer."""
    jobs = sorted({*jobs} - {""})
    if not jobs:
        return []
    command = ["sacct", "--jobs", ",".join(jobs), "--duplicates", "--allocations", "--noheader", "--parsable2"]
    command += [f"--format={_FIELDS}", "--starttime=1970-01-02"]
    return parse(child_runs.answer(command, _ANSWER_SECONDS), time.time())


def parse(table: str, now: float) -> list[JobStart]:
    """Returns the starts in a table of sacct, by time; lines of jobs that have not started are left out."""
    found = []
    for line in table.splitlines():
        with contextlib.suppress(ValueError):
            job, submit, start, end, joules = line.split("|")
            ended = now if end == "Unknown" else _seconds(end)
            energy = float(joules) if joules.isdecimal() else 0.0
            times = {"submitted": _seconds(submit), "started": _seconds(start), "ended": ended}
            found.append(JobStart(job=job, **times, joules=energy))
    return sorted(found, key=lambda one: one.started)


def _seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
