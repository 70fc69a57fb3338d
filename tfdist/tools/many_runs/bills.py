"""What the time of runs was spent on, over all their starts, and what Slurm's accounting says of their jobs.

Imports no TensorFlow.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory
from tfdist.report import read_back
from tfdist.tools import child_runs

COUNT, AGAIN = "steps that count", "steps done again"
QUEUE, OUTSIDE, BETWEEN = "queue", "job outside the run", "between the starts"
# In the order of tables. Nothing is allocated in the queue and between the starts.
CAUSES = (
    *(COUNT, AGAIN, "input", "evaluation", "checkpoints", "start", "compilation", "other", "fault"),
    *(OUTSIDE, QUEUE, BETWEEN),
)
NOT_ALLOCATED = (QUEUE, BETWEEN)
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The time of a run, or of several, by cause."""

    name: str
    starts: int = 0
    # As `run_state.RunState.state`.
    state: str = ""
    # By cause, over all starts: seconds of the chief, and these times the replicas.
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    replica_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # By device, as read on the chief's machine, or "job" as accounted by Slurm; {}: not known.
    joules: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """The part of the allocated replica-seconds in steps that count."""
        return _part(self.replica_seconds)

    @property
    def ettr(self) -> float:
        """The effective training time ratio: the same part of all seconds, those in the queue included."""
        return _part(self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Returns the bill as JSON values."""
        hours = sum(self.replica_seconds.values()) / 3600
        whole = {"seconds_in_all": sum(self.seconds.values()), "replica_hours": hours}
        return dataclasses.asdict(self) | whole | {"goodput": self.goodput, "ettr": self.ettr}


def _part(seconds: Mapping[str, float]) -> float:
    whole = sum(seconds.values())
    return seconds.get(COUNT, 0.0) / whole if whole else 0.0


def of_run(
    workdir: Path,
    name: str,
    jobs: Sequence[JobStart] = (),
    *,
    state: str = "",
    others: Sequence[Mapping[str, Any]] = (),
) -> Bill | None:
    """Returns the bill of a run; None if it has no starts.jsonl. Raises ValueError if the file cannot be read.

    Args:
        jobs: the starts of its Slurm jobs.
        state: see `Bill.state`.
        others: the starts of other runs. Those in the same job have their part of its time, and the run that began
            first in a start of the job has its energy.
    """
    starts = read_back.read_starts(workdir)
    if not starts:
        return None
    jobs = [job for job in jobs if job.job in {start.get("job") for start in starts}]
    seconds, replica_seconds = dict.fromkeys(CAUSES, 0.0), dict.fromkeys(CAUSES, 0.0)

    def add(cause: str, value: float, replicas: int) -> None:
        seconds[cause] += value
        replica_seconds[cause] += 0.0 if cause in NOT_ALLOCATED else value * replicas

    for index, start in enumerate(starts):
        replicas = start.get("replicas", 1)
        for cause, value in _split(start, _kept_until(workdir, starts, index)).items():
            add(cause, value, replicas)
        submitted = [job.submitted for job in jobs if job.started <= start["start"]]
        begin = starts[index - 1]["now"] if index else [start["start"], *submitted][-1]
        before = [other["now"] for other in _in_job(start.get("job"), others) if other["start"] < start["start"]]
        for cause, value in _gap(max([begin, *before]), start["start"], jobs).items():
            add(cause, value, replicas)
    if any(job.joules for job in jobs):
        joules = {"job": sum(job.joules for job in jobs if _first_in(job, starts) <= _first_in(job, others))}
    else:
        joules = _sum([start.get("joules", {}) for start in starts])
    return Bill(
        name=name, starts=len(starts), state=state, seconds=seconds, replica_seconds=replica_seconds, joules=joules
    )


def _in_job(job: str | None, starts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [start for start in starts if job and start.get("job") == job]


def _first_in(job: JobStart, starts: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns when the first of these starts began in a start of a job, and in all of them; infinity: none did."""
    begun = [start["start"] for start in _in_job(job.job, starts)]
    inside = [begin for begin in begun if job.started <= begin < job.ended]
    return min(inside, default=math.inf), min(begun, default=math.inf)


def job_starts(jobs: Iterable[str]) -> list[JobStart]:
    """Returns the starts of these jobs, "7" or "7_3", in order; [] without sacct, or if it does not answer."""
    jobs = sorted({*jobs} - {""})
    if not jobs:
        return []
    command = ["sacct", "--jobs", ",".join(jobs), "--duplicates", "--allocations", "--noheader", "--parsable2"]
    command += [f"--format={_FIELDS}", "--starttime=1970-01-02"]
    return parse_accounting(child_runs.answer(command, _ANSWER_SECONDS), time.time())


def parse_accounting(table: str, now: float) -> list[JobStart]:
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


def jobs_of(workdir: Path) -> set[str]:
    """Returns the ids of the Slurm jobs of a run; raises ValueError if starts.jsonl cannot be read."""
    return {start["job"] for start in read_back.read_starts(workdir) if isinstance(start.get("job"), str)} - {""}


def total(bills: Sequence[Bill], name: str) -> Bill:
    """Returns the sum of bills."""
    return Bill(
        name=name,
        starts=sum(bill.starts for bill in bills),
        seconds=_sum([bill.seconds for bill in bills]),
        replica_seconds=_sum([bill.replica_seconds for bill in bills]),
        joules=_sum([bill.joules for bill in bills]),
    )


def _sum(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in several for name in one)
    return {name: sum(one.get(name, 0.0) for one in several) for name in names}


def _kept_until(workdir: Path, starts: Sequence[Mapping[str, Any]], index: int) -> int:
    """Returns the last step of a start that no later one repeats, or would."""
    step = starts[index]["step"]
    if index + 1 < len(starts):
        return min(step, starts[index + 1]["first_step"])
    if starts[index].get("end") in ("finished", "stopped"):
        return step
    return min(step, directory.newest_step(workdir / "checkpoints") or starts[index]["first_step"])


def _split(start: Mapping[str, Any], kept_until: int) -> dict[str, float]:
    """Returns the seconds of a start by cause; those of its steps are divided by which of them count."""
    found = {name: float(value) for name, value in start["seconds"].items()}
    done = max(1, start["steps_done"])
    counted = min(1.0, max(0, kept_until - start["first_step"]) / done)
    steps, waited = found.pop("steps", 0.0), found.pop("input", 0.0)
    found |= {COUNT: counted * steps, AGAIN: (1 - counted) * (steps + waited), "input": counted * waited}
    return found


def _gap(begin: float, end: float, jobs: Sequence[JobStart]) -> dict[str, float]:
    """Returns on what the time between two starts was spent: in the queue, in a job outside the run, or in neither."""
    if end <= begin:
        return {}
    queue = sum(_overlap(begin, end, job.submitted, job.started) for job in jobs)
    outside = sum(_overlap(begin, end, job.started, job.ended) for job in jobs)
    return {QUEUE: queue, OUTSIDE: outside, BETWEEN: max(0.0, end - begin - queue - outside)}


def _overlap(begin: float, end: float, first: float, last: float) -> float:
    return max(0.0, min(end, last) - max(begin, first))
