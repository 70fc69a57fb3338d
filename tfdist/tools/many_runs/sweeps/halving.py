"""Successive halving (Jamieson and Talwalkar, arXiv 1502.07943): the worse half of the runs stops after stated epochs.

A run pauses after each of these epochs (`config.cluster.pause_epochs`), and goes on if it is in the better half. Which
runs these are depends on their evaluations alone, not on the order in which they ran. It is decided once, when every
run has ended its epochs, and written to `pruned-EPOCHS.json`.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfdist.config import schema
from tfdist.report import files, reporter
from tfdist.tools.many_runs.sweeps import ends
from tfdist.tools.many_runs.sweeps.plan import Plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The runs that go on, and until when."""

    names: tuple[str, ...]
    # After these epochs they pause; None: they train to their end.
    epochs: int | None = None
    # Those of them that have ended the stage.
    done: frozenset[str] = frozenset()

    @property
    def fields(self) -> list[str]:
        """The flag of `tfdist.main` that pauses a run there."""
        return [] if self.epochs is None else [f"--config.cluster.pause_epochs={self.epochs}"]


def check(prune: tuple[int, ...], runs: Mapping[str, schema.Config]) -> None:
    """Raises a ValueError if a run has no evaluation after one of these epochs."""
    for name, config in runs.items():
        every, end = config.evaluation.every, config.train.epochs
        for epochs in prune:
            # A fraction of an epoch is rounded to steps, which are not known here.
            regular = every.epochs is not None and not epochs % every.epochs and every.steps is None
            if not regular and epochs not in (every.after or ()):
                raise ValueError(
                    f"--prune={epochs}: the run {name} has no evaluation after epoch {epochs}. Evaluations are at "
                    f"multiples of config.evaluation.every.epochs={every.epochs} and after the epochs "
                    f"config.evaluation.every.after={every.after}: choose one, or set "
                    "--config.evaluation.every.epochs=1 and --config.evaluation.every.steps=none."
                )
            if end is None or epochs >= end:
                raise ValueError(f"--prune={epochs} must be before the end of the run {name}: train.epochs is {end}.")


def stage(plan: Plan, workdir: Path, *, decide: bool = True) -> Stage:
    """Returns the stage that is not complete, or the last one.

    With `decide`, a stage whose runs have ended, or have failed, is complete, and is written as such. Raises ValueError
    if a file of a run is damaged, or no evaluation has the metric; OSError if a decision cannot be written.
    """
    names = tuple(plan.runs)
    for epochs in plan.prune:
        path = workdir / f"pruned-{epochs}.json"
        saved = files.read_json(str(path))
        if saved is None:
            done = frozenset(name for name in names if has_ended(workdir / name, epochs))
            left = [name for name in names if name not in done]
            if not decide or any(ends.read(plan, workdir, name).state != "failed" for name in left):
                return Stage(names=names, epochs=epochs, done=done)
            check_metric(plan, workdir, done)
            found = {name: value_at(workdir / name, plan.metric, epochs) for name in names}
            saved = {"metric": plan.metric, "values": found, "continue": better_half(found, plan.mode)}
            files.write_json(str(path), saved)
        names = tuple(saved["continue"])
    return Stage(names=names)


def has_ended(workdir: Path, epochs: int) -> bool:
    """Returns whether a run has an evaluation after `epochs` or later, of any value, or is finished."""
    return (workdir / "finished.json").exists() or _has_passed(workdir, epochs)


def _has_passed(workdir: Path, epochs: int) -> bool:
    return any(record.get("epoch", 0) >= epochs for record in ends.evaluation_records(workdir))


def check_metric(plan: Plan, workdir: Path, names: Iterable[str]) -> None:
    """Raises a ValueError if these runs have evaluations, but none has the metric."""
    records: list[dict[str, Any]] = []
    for name in names:
        with contextlib.suppress(ValueError):  # A damaged one counts as failed.
            records += ends.evaluation_records(workdir / name)
    if records and not any(plan.metric in record for record in records):
        known = sorted({*records[-1]} - reporter.RESERVED)
        raise ValueError(f"--metric={plan.metric}: no evaluation has this value. They have: {', '.join(known)}.")


def read_pruned(plan: Plan, workdir: Path) -> dict[str, int]:
    """Returns the runs that have been stopped, and after which epoch."""
    found: dict[str, int] = {}
    for epochs in plan.prune:
        saved = files.read_json(str(workdir / f"pruned-{epochs}.json"))
        if saved is not None:
            gone = [name for name in saved["values"] if name not in saved["continue"]]
            found |= dict.fromkeys(gone, epochs)
    return found


def better_half(values: Mapping[str, float | None], mode: str) -> list[str]:
    """Returns the better half of the runs, rounded up, in their order; of equal ones the first; None is the worst."""
    known = [name for name, value in values.items() if value is not None]
    ranked = sorted(known, key=lambda name: -values[name] if mode == "max" else values[name])
    chosen = {*ranked[: -(-len(values) // 2)]}
    return [name for name in values if name in chosen]


def value_at(workdir: Path, metric: str, epochs: int) -> float | None:
    """Returns a run's value of the metric after `epochs`; the last one of a run that a callback ended before."""
    found = ends.evaluations(workdir, metric)
    at = [value for epoch, value in found if epoch == epochs]
    if not at and not _has_passed(workdir, epochs) and (workdir / "finished.json").exists():
        at = [value for _, value in found[-1:]]
    return at[-1] if at else None
