"""The Slurm job of this process: its id, its end, its restarts. Imports no TensorFlow."""

import math
import os
from collections.abc import Mapping

# Number of restarts after which a failed start does not requeue the job again.
_START_RESTARTS = 3


def job_id(env: Mapping[str, str]) -> str | None:
    """Returns the id of this job for scontrol and squeue; None: not a Slurm job.

    For a task of a job array it is ARRAY_TASK: SLURM_JOB_ID may be the id of the whole array.
    """
    if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")


def end_time(env: Mapping[str, str]) -> float:
    """Returns the end of the job as `time.time`; infinite if unknown, as with Slurm before 23.02."""
    text = env.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isdecimal() else math.inf


def few_restarts() -> bool:
    """Returns whether a failed start may requeue the job: Slurm has restarted it fewer than `_START_RESTARTS` times."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) < _START_RESTARTS
