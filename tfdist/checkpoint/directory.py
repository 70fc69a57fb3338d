"""The directory of a run's checkpoints: their paths, steps, and which is best. Imports no TensorFlow."""

import json
import re
from pathlib import Path
from typing import Any

BEST = "best.json"
_STEP_DIRECTORY = re.compile(r"step-(\d{8,})$")


def step_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return directory / f"step-{step:08d}"


def newest_step(directory: Path) -> int | None:
    """Returns the newest step that has a checkpoint, unverified, or None."""
    return next(iter(steps(directory)), None)


def read_best(directory: Path) -> dict[str, Any] | None:
    """Returns {"step", "metric", "value"} of the best checkpoint, or None where none is recorded."""
    try:
        best = json.loads((directory / BEST).read_text())
        return best if isinstance(best["step"], int) and step_path(directory, best["step"]).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def steps(directory: Path) -> list[int]:
    """The steps that have a directory, whole or not, newest first."""
    if not directory.is_dir():
        return []
    matches = (_STEP_DIRECTORY.match(path.name) for path in directory.iterdir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)
