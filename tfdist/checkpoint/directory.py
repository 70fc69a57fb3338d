"""The directory of a run's checkpoints: their paths, steps, and which is best. Imports no TensorFlow."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from tfdist.report import files

BEST = "best.json"
_RESUME = "run the same command to resume"
_STEP_DIRECTORY = re.compile(r"step-(\d{8,})$")


def step_path(directory: Path, step: int) -> Path:
    """Returns the directory of the checkpoint of `step`."""
    return directory / f"step-{step:08d}"


def newest_step(directory: Path) -> int | None:
    """Returns the newest step with a checkpoint directory, not verified, or None."""
    return next(iter(steps(directory)), None)


def write_times(directory: Path) -> set[tuple[int, int]]:
    """Returns (step, time of writing) of each checkpoint; the time changes if a damaged checkpoint is replaced."""
    found = set()
    with contextlib.suppress(OSError):
        found.update((step, step_path(directory, step).stat().st_mtime_ns) for step in steps(directory))
    return found


def describe_remaining(directory: Path) -> str:
    """Returns the part of a message that says which checkpoint remains after a stop or a failed save."""
    step = newest_step(directory)
    return "nothing to save" if step is None else f"the checkpoint of step {step} is unchanged: {_RESUME}"


def read_best(directory: Path) -> dict[str, Any] | None:
    """Returns {"step", "metric", "value"} of the best checkpoint, None if none is recorded; OSError: unreadable."""
    try:
        best = files.read_json(directory / BEST)
        return best if best["step"] in steps(directory) else None
    except OSError:
        raise
    except (ValueError, KeyError, TypeError):
        return None


def steps(directory: Path) -> list[int]:
    """Returns the steps with a checkpoint directory, valid or not, newest first; OSError: unreadable."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = map(_STEP_DIRECTORY.match, names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)
