"""Requeues the Slurm job of this process when it ends. Imports no TensorFlow."""

import dataclasses
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

from tfdist.cluster import interruption
from tfdist.cluster.discovery import slurm_job

# Time limit in seconds of scontrol, and of reading the workdir.
_ANSWER_SECONDS = 60.0
# If the job ends within this many seconds, a stop request is due to the job's time limit, and the message says so. The
# signal of launch/slurm.sbatch comes 120 s before the end.
_NEAR_SECONDS = 600.0
# How many workers after the chief may requeue in its place, and the seconds that each waits per worker before it.
_SUBSTITUTES, _TURN_SECONDS = 7, 2.0
# Users end jobs with these signals. If Slurm itself sends SIGTERM, it requeues the job itself, or the job must end.
_BY_USER = ("SIGTERM", "SIGINT")


@dataclasses.dataclass(slots=True, kw_only=True)
class RequeuePolicy:
    """The conditions under which this worker requeues the job; created by `enable_requeue`."""

    rank: int
    stop: interruption.StopRequest
    # Returns True if a restart may help: this start has saved a new checkpoint or, before a run is opened, Slurm has
    # restarted the job only a few times.
    progressed: Callable[[], bool]


# The policy of this process; None: it does not requeue.
_policy: RequeuePolicy | None = None


def enable_requeue(rank: int, stop: interruption.StopRequest, progressed: Callable[[], bool]) -> None:
    """Allows this process to requeue its job when it exits; see `requeue`."""
    global _policy
    # The workdir may hang.
    known = functools.partial(interruption.within, _ANSWER_SECONDS, progressed)
    _policy = RequeuePolicy(rank=rank, stop=stop, progressed=lambda: bool(known()))


def progressed() -> bool | None:
    """Returns `RequeuePolicy.progressed` of this process; None: it does not requeue."""
    return None if _policy is None else _policy.progressed()


def requeue(*, in_turn: bool = False) -> None:
    """Requeues the job if this is allowed, and logs it; the caller then ends this process.

    The chief requeues; after SIGTERM or SIGINT, no worker does. With `in_turn`, the next workers wait, and requeue if
    none before them has, because the chief may be lost.
    """
    policy, env = _policy, os.environ
    if policy is None or policy.stop.reason in _BY_USER:
        return
    before = policy.rank
    if before and not (in_turn and before <= _SUBSTITUTES and policy.progressed()):
        return
    time.sleep(_TURN_SECONDS * before)
    job = slurm_job.job_id(env)
    if job is None:
        problem = "SLURM_JOB_ID is not set: not a Slurm job"
    elif not policy.progressed():
        problem = "this attempt saved no new checkpoint after its first step, so a restart would not either"
        if policy.stop.reason and (left := slurm_job.end_time(env) - time.time()) < _NEAR_SECONDS:
            problem += f": the job ends in {left:.0f} s. Submit it with more --time, or a later --signal"
    else:
        problem = _requeue(job)
    if before and problem:  # The chief has reported it.
        return
    message = f"job {job} requeued: Slurm ends its processes now. Slurm's lines with CANCELLED are not errors"
    if problem:
        message = f"job not requeued: {problem}. Run the same command to resume"
    print(f"tfdist: {message}", file=sys.stderr, flush=True)


def _requeue(job: str) -> str:
    """Requeues `job` with scontrol; returns the reason if that fails, or ""."""
    try:
        shown = _scontrol("show", "job", job)
        state = re.search(r"JobState=(\w+)", shown.stdout)
        if state and state[1] != "RUNNING":
            # Cancelled by the user, or already requeued by Slurm.
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
