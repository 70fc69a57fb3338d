"""The lines of a run's log: one per report, with the values of training and evaluation. Imports no TensorFlow."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

from tfdist.report import formats

# The longest line of a file, in characters; on a terminal it is the terminal's width.
COLUMNS = 100


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
    """Formats rows: `epoch 1/5  196 steps  41.2 s  1,213 images/s  loss 0.4321  accuracy 0.8750`."""

    # Epochs of the run.
    epochs: float
    # Write the time of day, and the time left before the measurements: for files. A terminal has a bar.
    clock: bool
    # What an example is called.
    examples: str = "examples"

    def lines(self, row: Row, width: int) -> list[str]:
        """Returns the line of a row; several, each indented, if one would be longer than `width` characters."""
        epochs = f"{round(self.epochs, 4):.4g}"
        start = [
            *([time.strftime("%H:%M:%S")] if self.clock else []),
            f"epoch {f'{row.epoch:.4g}'.rjust(len(epochs))}/{epochs}",
            f"{row.steps:,} step{'s' * (row.steps != 1)}",
            f"{formats.rate(row.seconds) if row.seconds >= 0.1 else f'{row.seconds:.2g}'} s",
            f"{formats.rate(row.examples_per_second)} {self.examples}/s",
        ]
        values = named(row.values)
        evaluation = [*named(row.evaluation or {}, "val_"), *(["best"] if row.best else [])]
        lines, indent = ["  ".join(start)], len("  ".join(start)) + 2
        if indent + len("  ".join([*values, *evaluation])) <= width:
            values, evaluation = [*values, *evaluation], []
        add(lines, values, width, indent)
        add(lines, evaluation, width, indent, new_line=True)
        details = [f"{row.left} left", *row.details] if self.clock and row.details else row.details
        add(lines, details, width, 2, new_line=True)
        return lines


def named(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Returns each value with its name: `loss 0.4321`."""
    return [f"{prefix}{name} {formats.number(value)}" for name, value in values.items()]


def add(lines: list[str], parts: Sequence[str], width: int, indent: int, *, new_line: bool = False) -> None:
    """Adds `parts` to the last of `lines`, and to new ones where it would be longer than `width` characters.

    Args:
        lines: at least one.
        parts: none is divided.
        width: in characters.
        indent: spaces at the start of a new line; fewer, down to 2, if the other parts fit then.
        new_line: start with a new line.
    """
    for index, part in enumerate(parts):
        if new_line or len(f"{lines[-1]}  {part}") > width:
            spaces = max(2, min(indent, width - len("  ".join(parts[index:]))))
            lines.append(" " * spaces + part)
        else:
            lines[-1] += f"  {part}"
        new_line = False
