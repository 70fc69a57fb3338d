"""The lines of a run's log: one per report, with its values and the workers' shares of time. Imports no TensorFlow."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

# The longest line of a file, in characters; on a terminal it is the terminal's width.
COLUMNS = 100
# (input, compute, communication) of one worker, each 0 to 1.
Shares = tuple[float, float, float]


@dataclasses.dataclass(slots=True, kw_only=True)
class Row:
    """A report of training, and the evaluation after the same step, if there is one."""

    step: int
    epoch: float
    # Steps and seconds of the interval, and its examples per second over all replicas.
    steps: int
    seconds: float
    examples_per_second: float
    values: Mapping[str, float]
    # The time left, as text.
    left: str = ""
    # None: no evaluation after this step.
    evaluation: Mapping[str, float] | None = None
    best: bool = False
    # Measurements, for a line of their own.
    details: Sequence[str] = ()


@dataclasses.dataclass(slots=True, kw_only=True)
class LineFormat:
    """Formats rows, all in one form: `epoch 1/5  196 steps  41.2 s  1,213/s  loss 0.4321/0.5012  best`."""

    # Epochs of the run.
    epochs: float
    # The name of examples.
    examples: str = "examples"
    # Whether evaluations are expected.
    evaluates: bool = False
    # Whether the form was explained, in a line before the first row.
    explained: bool = False

    def lines(self, row: Row, width: int, *, clock: bool) -> list[str]:
        """Returns the line of a row; several, the others indented, if one would be longer than `width` characters.

        With `clock`, for files, it has the time of day, and the time left before the measurements.
        """
        legend = f"values     {'training/evaluation, ' if self.evaluates else ''}speed in {self.examples}/s"
        lines = [] if self.explained else [legend]
        self.explained = True
        all_epochs = epochs(self.epochs)
        start = [
            *([time.strftime("%H:%M:%S")] if clock else []),
            f"epoch {epochs(row.epoch).rjust(len(all_epochs))}/{all_epochs}",
            count(row.steps, "step"),
            f"{rate(row.seconds) if row.seconds >= 0.1 else f'{row.seconds:.2g}'} s",
            f"{rate(row.examples_per_second)}/s",
        ]
        lines.append("  ".join(start))
        evaluation = dict(row.evaluation or {})
        both = {name: f"/{number(evaluation.pop(name))}" for name in row.values if name in evaluation}
        values = [f"{name} {number(value)}{both.get(name, '')}" for name, value in row.values.items()]
        values += [*name_values(evaluation, "val_"), *(["best"] if row.best else [])]
        add(lines, values, width, len(lines[-1]) + 2)
        details = [f"{row.left} left", *row.details] if clock and row.details else row.details
        add(lines, details, width, 2, new_line=True)
        return lines


def name_values(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Returns each value with its name: `loss 0.4321`."""
    return [f"{prefix}{name} {number(value)}" for name, value in values.items()]


def add(lines: list[str], parts: Sequence[str], width: int, indent: int, *, new_line: bool = False) -> None:
    """Adds `parts` to the last of `lines`, and to new ones where it would be longer than `width` characters.

    New lines begin with `indent` spaces; fewer, down to 2, if the other parts fit then.
    """
    for index, part in enumerate(parts):
        if new_line or len(f"{lines[-1]}  {part}") > width:
            spaces = max(2, min(indent, width - len("  ".join(parts[index:]))))
            lines.append(" " * spaces + part)
        else:
            lines[-1] += f"  {part}"
        new_line = False


def count(value: int, name: str) -> str:
    """Formats a number of things: `1 step`, `1,200 steps`."""
    return f"{value:,} {name}{'s' * (value != 1)}"


def epochs(value: float) -> str:
    """Formats a number of epochs: `0.3333`, `5`, `12346`."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def number(value: float) -> str:
    """Formats a value with four significant digits: `0.4321`, `12.50`, `3.100e-05`, `51,200`."""
    return f"{value:,.0f}" if 999.95 <= abs(value) < 1e15 else f"{value:#.4g}"


def rate(value: float) -> str:
    """Formats a rate per second: `12,346`, `3.24`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Formats seconds as `1:02:03`; `-:--:--` if not finite."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def slowest_worker(worker_shares: Sequence[Shares]) -> int:
    """Returns the rank of the worker that the others wait for: the one with the smallest communication share."""
    return min(range(len(worker_shares)), key=lambda rank: worker_shares[rank][2])


def extreme_workers(worker_shares: Sequence[Shares]) -> list[int]:
    """Returns the ranks of the slowest worker and of the one that waits longest for it, in order."""
    waits_longest = max(range(len(worker_shares)), key=lambda rank: worker_shares[rank][2])
    return sorted({slowest_worker(worker_shares), waits_longest})


def describe_shares(worker_shares: Sequence[Shares]) -> list[str]:
    """Returns the shares of the extreme workers, as the parts of a console line; all are given in rank order."""
    parts = []
    for rank in extreme_workers(worker_shares):
        waiting, computing, communicating = worker_shares[rank]
        parts.append(f"worker {rank}: {waiting:.0%} input, {computing:.0%} compute, {communicating:.0%} communication")
    return [*parts, f"slowest: worker {slowest_worker(worker_shares)}"]
