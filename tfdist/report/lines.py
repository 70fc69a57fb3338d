"""The lines of a run's log: one per report, with its values. Imports no TensorFlow."""

import dataclasses
import math
import time
from collections.abc import Mapping


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
    # None: no evaluation after this step.
    evaluation: Mapping[str, float] | None = None
    best: bool = False


def format_row(row: Row, run_epochs: float, *, clock: bool) -> str:
    """Returns `epoch 1/5  196 steps  41.2 s  1,213/s  loss 0.4321/0.5012  best`; `clock`: with the time of day first.

    Values are those of training, and after "/" of the evaluation; the speed is in examples per second.
    """
    all_epochs = epochs(run_epochs)
    evaluation = dict(row.evaluation or {})
    both = {name: f"/{number(evaluation.pop(name))}" for name in row.values if name in evaluation}
    parts = [
        *([time.strftime("%H:%M:%S")] if clock else []),
        f"epoch {epochs(row.epoch).rjust(len(all_epochs))}/{all_epochs}",
        count(row.steps, "step"),
        f"{rate(row.seconds) if row.seconds >= 0.1 else f'{row.seconds:.2g}'} s",
        f"{rate(row.examples_per_second)}/s",
        *(f"{name} {number(value)}{both.get(name, '')}" for name, value in row.values.items()),
        *name_values(evaluation, "val_"),
        *(["best"] if row.best else []),
    ]
    return "  ".join(parts)


def name_values(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Returns each value with its name: `loss 0.4321`."""
    return [f"{prefix}{name} {number(value)}" for name, value in values.items()]


def count(value: int, name: str) -> str:
    """Formats a number of things: `1 step`, `1,200 steps`."""
    return f"{value:,} {name}{'s' * (value != 1)}"


def epochs(value: float) -> str:
    """Formats a number of epochs: `0.3333`, `5`, `12346`."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def number(value: float) -> str:
    """Formats a value with at least four significant digits: `0.4321`, `12.50`, `3.100e-05`, `51,200`."""
    return f"{value:,.0f}" if 999.95 <= abs(value) < 1e15 else f"{value:#.4g}"


def rate(value: float) -> str:
    """Formats seconds, or a rate per second: `12,346`, `3.24`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Formats seconds as `1:02:03`; `-:--:--` if not finite."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
