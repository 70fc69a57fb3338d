"""The table of a run's log: one line per report, with the values of training and evaluation. Imports no TensorFlow."""

import dataclasses
import time
from collections.abc import Mapping

from tfdist.report import formats

# A column is as wide as its title, but at least this wide if it holds values.
_VALUE_WIDTH = 8


@dataclasses.dataclass(slots=True, kw_only=True)
class Row:
    """A report of training, and the evaluation after the same step, if there is one."""

    step: int
    epoch: float
    # Seconds of the interval, and its examples per second over all replicas.
    seconds: float
    examples_per_second: float
    values: Mapping[str, float]
    # The time left, as text.
    left: str = ""
    # None: no evaluation after this step.
    evaluation: Mapping[str, float] | None = None
    best: bool = False
    # A second line with measurements; "": none.
    details: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Table:
    """Formats rows; a header line comes before the first one, and again if the columns change."""

    # Epochs of the run.
    epochs: float
    # Write the time of day and the time left: for files. A terminal shows the time left in its bar.
    clock: bool
    # Whether rows have columns for an evaluation.
    evaluates: bool = True
    header: tuple[str, ...] = ()

    def lines(self, row: Row) -> list[str]:
        """Returns the lines of a row, with the header if it is needed."""
        known = [name for name in self.header if name.startswith("val_")]
        if row.evaluation is not None:
            known = [f"val_{name}" for name in row.evaluation]
        elif not known and self.evaluates:
            known = [f"val_{name}" for name in row.values if name != "regularization"]
        evaluation = {f"val_{name}": formats.number(value) for name, value in (row.evaluation or {}).items()}
        cells = {
            "time": time.strftime("%H:%M:%S"),
            "epoch": f"{row.epoch:.4g}/{self.epochs:.4g}",
            "step": f"{row.step}",
            "sec": formats.rate(row.seconds) if row.seconds >= 0.1 else f"{row.seconds:.2g}",
            "examples/s": formats.rate(row.examples_per_second),
            "left": row.left,
            **{name: formats.number(value) for name, value in row.values.items()},
            **{name: evaluation.get(name, "") for name in known},
        }
        if not self.clock:
            del cells["time"], cells["left"]
        lines = []
        if tuple(cells) != self.header:
            self.header = tuple(cells)
            lines.append("  ".join(title.rjust(self._width(title)) for title in cells))
        line = "  ".join(text.rjust(self._width(title)) for title, text in cells.items())
        lines.append(f"{line} best" if row.best else line.rstrip())
        return [*lines, f"  {row.details}"] if row.details else lines

    def _width(self, title: str) -> int:
        epochs = 2 * len(f"{self.epochs:.4g}") + 1
        fixed = {"time": 8, "epoch": max(5, epochs), "step": 5, "sec": 6, "examples/s": 10, "left": 7}
        return fixed.get(title, max(_VALUE_WIDTH, len(title)))
