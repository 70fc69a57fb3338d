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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a row."""

    # Whether it has the number of steps, and the name of examples.
    steps: bool = True
    examples: bool = True
    # Between a value of training and the evaluation's of the same name; None: evaluations follow, as `val_loss 0.5`.
    between: str | None = None
    # Whether the evaluation has a second line.
    second_line: bool = False
    # Whether values that do not fit go to further lines.
    wraps: bool = False


# The best first: the first one that fits is taken.
FORMS = (
    *(Form(), Form(between=" val "), Form(between="/"), Form(between="/", examples=False)),
    *(Form(second_line=True), Form(second_line=True, examples=False)),
    *(Form(between="/", examples=False, wraps=True), Form(between="/", examples=False, wraps=True, steps=False)),
)


@dataclasses.dataclass(slots=True, kw_only=True)
class LineFormat:
    """Formats rows: `epoch 1/5  196 steps  41.2 s  1,213 images/s  loss 0.4321  accuracy 0.8750`."""

    # Epochs of the run.
    epochs: float
    # Write the time of day, and the time left before the measurements: for files. A terminal has a bar.
    clock: bool
    # The name of examples.
    examples: str = "examples"
    # Whether evaluations are expected: all lines leave room for them, and so have one form.
    evaluates: bool = False
    # The index in `FORMS` of the last line's form: later lines are not longer.
    form: int = 0
    # The parts of the legend that were written, each before the first line of a form that needs it.
    explained: frozenset[str] = frozenset()

    def lines(self, row: Row, width: int) -> list[str]:
        """Returns the line of a row; several, the others indented, if one would be longer than `width` characters."""
        usual = dict.fromkeys(row.values, 0.1234)
        later = dataclasses.replace(row, values=usual, evaluation=usual, best=True, examples_per_second=1234)
        for longest in (later, row) if self.evaluates else (row,):
            while self.form < len(FORMS) - 1 and not self._fits(longest, FORMS[self.form], width):
                self.form += 1
        form, lines = FORMS[self.form], []
        both = form.between == "/" and (self.evaluates or row.evaluation)
        legend = ["training/evaluation"] * bool(both) + [f"speed in {self.examples}/s"] * (not form.examples)
        if not self.explained.issuperset(legend):
            lines, self.explained = [f"values     {', '.join(legend)}"], self.explained.union(legend)
        start, values, evaluation = self._parts(row, form)
        lines.append(start)
        add(lines, values, width, len(start) + 2)
        add(lines, evaluation, width, len(start) + 2, new_line=form.second_line)
        details = [f"{row.left} left", *row.details] if self.clock and row.details else row.details
        add(lines, details, width, 2, new_line=True)
        return lines

    def _fits(self, row: Row, form: Form, width: int) -> bool:
        """Returns whether the lines that `form` should have are at most `width` characters long."""
        start, values, evaluation = self._parts(row, form)
        if form.wraps:
            return len(start) <= width
        parts = [start, *values] if form.second_line else [start, *values, *evaluation]
        return len("  ".join(parts)) <= width

    def _parts(self, row: Row, form: Form) -> tuple[str, list[str], list[str]]:
        """Returns the start of a line, each value of training with its name, and the evaluation's values."""
        epochs = f"{round(self.epochs, 4):.4g}"
        start = [
            *([time.strftime("%H:%M:%S")] if self.clock else []),
            f"epoch {f'{row.epoch:.4g}'.rjust(len(epochs))}/{epochs}",
            *([f"{row.steps:,} step{'s' * (row.steps != 1)}"] if form.steps else []),
            f"{formats.rate(row.seconds) if row.seconds >= 0.1 else f'{row.seconds:.2g}'} s",
            f"{formats.rate(row.examples_per_second)}{f' {self.examples}' * form.examples}/s",
        ]
        evaluation = dict(row.evaluation or {})
        values = named(row.values)
        if form.between is not None:
            both = [formats.number(evaluation.pop(name)) if name in evaluation else None for name in row.values]
            values = [
                value if other is None else f"{value}{form.between}{other}"
                for value, other in zip(values, both, strict=True)
            ]
        return "  ".join(start), values, [*named(evaluation, "val_"), *(["best"] if row.best else [])]


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
