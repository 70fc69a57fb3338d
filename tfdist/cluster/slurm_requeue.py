"""What a batch job knows of its place in Slurm's queue: when its time ends, and how it is put back. No TensorFlow."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping

from tfdist.cluster import interruption

# How long Slurm's controller may take to answer, in seconds.
_ANSWER_SECONDS = 60.0
# By these a user ends a job. Where Slurm sends SIGTERM of its own accord, it puts the job back itself, or must not.
_BY_USER = ("SIGTERM", "SIGINT")


@dataclasses.dataclass(slots=True, kw_only=True)
class RequeuePolicy:
    """What decides whether this worker puts the job back; made by `allow`."""

    rank: int
    stop: interruption.StopRequest
    # Whether this start has saved something new: another one like it would else be of no use.
    progressed: Callable[[], bool]


# The one of this process, if it may put its job back at all.
_return: RequeuePolicy | None = None


def end_time(env: Mapping[str, str], started: float, limit_seconds: float | None) -> float | None:
    """When this process must have ended, in seconds as `time.time` counts; None: never.

    Args:
        env: Slurm (since 23.02) says in SLURM_JOB_END_TIME when the job's time ends.
        started: when this process began.
        limit_seconds: how long after that it may last; None: as long as Slurm lets it.
    """
    text = env.get("SLURM_JOB_END_TIME", "")
    ends = [float(text)] if text.isdecimal() else []
    if limit_seconds is not None:
        ends.append(started + limit_seconds)
    return min(ends, default=None)


def enable_requeue(rank: int, stop: interruption.StopRequest, progressed: Callable[[], bool]) -> None:
    """Lets this process put its job back into the queue when it ends; see `put_back`."""
    global _return
    _return = RequeuePolicy(rank=rank, stop=stop, progressed=progressed)


def requeue(*, lost_chief: bool = False) -> None:
    """Puts the job back into the queue where that is allowed, and says so; the caller then ends this process.

    The chief does it, or rank 1 where it is the chief that was lost. Nobody does after SIGTERM or SIGINT.
    """
    wanted, env = _return, os.environ
    if wanted is None or wanted.rank != (1 if lost_chief else 0) or wanted.stop.reason in _BY_USER:
        return
    if "SLURM_JOB_ID" not in env:
        problem = "SLURM_JOB_ID is not set: not a Slurm job"
    elif not wanted.progressed():
        problem = "this attempt saved no new checkpoint, so a restart would not either"
    else:
        problem = _requeue(env["SLURM_JOB_ID"])
    message = f"job {env.get('SLURM_JOB_ID')} requeued"
    if problem:
        message = f"job not requeued: {problem}. Run the same command to resume"
    print(f"tfdist: {message}", file=sys.stderr, flush=True)


def _requeue(job: str) -> str:
    """Asks Slurm to put `job` back; returns why it is not, or ""."""
    try:
        shown = _scontrol("show", "job", job)
        state = re.search(r"JobState=(\w+)", shown.stdout)
        if state and state[1] != "RUNNING":
            # Such as one that the user has cancelled; or that Slurm itself has put back.
            return f"Slurm is ending it already ({state[1]})"
        done = _scontrol("requeue", job) if shown.returncode == 0 else shown
    except FileNotFoundError:
        return (
            "scontrol not found. In a container, mount Slurm's programs and configuration, or call scontrol requeue in "
            "the batch file when srun exits with 75"
        )
    except subprocess.TimeoutExpired:
        return f"scontrol did not respond within {_ANSWER_SECONDS:g} s"
    output = (done.stderr or done.stdout).strip().rpartition("\n")[2].rstrip(".")
    return f"scontrol failed: {output or f'exit code {done.returncode}'}" if done.returncode else ""


def _scontrol(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["scontrol", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_SECONDS
    )
