"""Finds the runs below directories, and which of them wait in the queue of Slurm. Imports no TensorFlow."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.tools import child_runs
from tfdist.tools.many_runs import run_state
from tfdist.tools.many_runs.run_state import RunState

# Levels of directories below the given one: runs/SWEEP/RUN/fit1.
_MAX_LEVELS = 5
# Seconds in which squeue must answer.
_ANSWER_SECONDS = 5.0
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING")


def workdirs(path: Path, problems: list[str], levels: int = _MAX_LEVELS) -> Iterator[Path]:
    """Yields the workdirs of runs at `path` and below it, those of the calls of `fit` of a script too, sorted.

    Hidden directories and links are left out; `problems` gets a line for each directory that cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            found = {entry.name: entry for entry in entries}
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror}).")
        return
    if not found.keys().isdisjoint(run_state.MARKS):
        yield path
        return
    for name in sorted(found, key=_by_number):
        if levels and not name.startswith(".") and found[name].is_dir(follow_symlinks=False):
            yield from workdirs(path / name, problems, levels - 1)


def _by_number(name: str) -> list[tuple[float, str]]:
    """Sorts fit2 before fit10, and peak=0.03 before peak=0.1."""
    return [(float(part), "") if part[:1].isdecimal() else (-1.0, part) for part in re.split(r"(\d+(?:\.\d+)?)", name)]


def read_all(paths: Sequence[Path]) -> tuple[list[RunState], list[str]]:
    """Reads the runs at and below `paths`, each once; also returns a line for each one that cannot be read."""
    runs: list[RunState] = []
    problems: list[str] = []
    for workdir in dict.fromkeys(each for path in paths for each in workdirs(path, problems)):
        try:
            runs.append(run_state.read(workdir))
        except Exception as error:  # A damaged file may hold anything.
            known = isinstance(error, ValueError | OSError)
            text = str(error) if known else f"a file holds what no run writes ({type(error).__name__}: {error})."
            problems.append(f"{workdir} is passed over: {text}")
    return with_queue(runs), problems


def with_queue(runs: Sequence[RunState]) -> list[RunState]:
    """Returns the runs; those that are neither alive nor finished and whose Slurm job waits are "queued"."""
    asked = [run for run in runs if run.job and run.state in ("stopped", "lost", "failed")]
    command = ["squeue", "--noheader", "--array", "--format=%i|%T"]
    lines = child_runs.answer(command, _ANSWER_SECONDS).splitlines() if asked else []
    pairs = (line.partition("|") for line in lines)
    waiting = {job.strip() for job, _, state in pairs if state.strip() in _WAITING}
    return [dataclasses.replace(run, state="queued") if run in asked and run.job in waiting else run for run in runs]
