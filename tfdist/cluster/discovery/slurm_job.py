"""The Slurm job of this process: its id, its end, its restarts. Imports no TensorFlow."""

import os
from collections.abc import Mapping

# Restarts of a job after which a failed start does not requeue it again.
_START_RESTARTS = 3


def job_id(env: Mapping[str, str]) -> str | None:
    """Returns the id that scontrol and squeue take for this job; None: not a Slurm job.

    For one task of a job array it is ARRAY_TASK: SLURM_JOB_ID may be the id of the whole array.
    """
    if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")


def end_time(env: Mapping[str, str], started: float, limit_seconds: float | None) -> float | None:
    """Returns the time at which this process must have exited, as `time.time`; None: no limit.

    Args:
        env: Slurm (since 23.02) sets SLURM_JOB_END_TIME to the end of the job's time.
        started: start of this process.
        limit_seconds: limit of its duration; None: only Slurm's.
    """
    text = env.get("SLURM_JOB_END_TIME", "")
    ends = [float(text)] if text.isdecimal() else []
    if limit_seconds is not None:
        ends.append(started + limit_seconds)
    return min(ends, default=None)


def few_restarts() -> bool:
    """Returns whether a start that failed may requeue the job: Slurm has restarted it a few times at most."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) < _START_RESTARTS
