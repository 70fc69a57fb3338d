"""Console output of a run: one line per report, and on a terminal a progress bar below. Imports no TensorFlow."""

import dataclasses
import math
import os
import time
from typing import TextIO

from tfdist.report import lines
from tfdist.report.lines import Row

REDRAW_SECONDS = 0.1
BAR_CELLS = 20


@dataclasses.dataclass(slots=True, kw_only=True)
class Console:
    """The console output of a run: with a bar if the stream is a terminal with escape codes, else with lines only."""

    stream: TextIO
    # Optimizer steps and epochs of the run.
    total_steps: int
    epochs: float
    # "all", "events" (no interval and evaluation lines) or "nothing".
    verbosity: str = "all"
    # True if lines can be redrawn in place.
    terminal: bool = dataclasses.field(init=False)
    # Step and time of the first report, after compilation; the time left is estimated from there.
    timed_from_step: int | None = None
    timed_from: float = 0.0
    # The last report of training, while its line waits for the evaluation after the same step.
    pending: Row | None = None
    # Time of the last redraw; True while the bar is on the screen.
    last_drawn: float = -math.inf
    bar_visible: bool = False

    def __post_init__(self):
        self.terminal = is_terminal(self.stream)

    def train(self, row: Row) -> None:
        """Reports an interval: redraws the bar; the line of the interval is written by a later call."""
        self.flush()
        if self.timed_from_step is None:
            self.timed_from_step, self.timed_from = row.step, time.monotonic()
        if self.verbosity == "all":
            self.pending = row
            self._draw(row.step, "")

    def progress(self, step: int, doing: str) -> None:
        """Redraws the bar on a terminal, at most ten times a second, with the activity `doing` unless it is empty."""
        if not doing:
            self.flush()
        if self.verbosity == "all" and time.monotonic() - self.last_drawn >= REDRAW_SECONDS:
            self._draw(step, doing)

    def flush(self) -> None:
        """Writes the line of the last report of training."""
        row, self.pending = self.pending, None
        if row is not None:
            self._line(lines.format_row(row, self.epochs, clock=not self.terminal))

    def line(self, text: str, *, always: bool = False) -> None:
        """Writes a permanent line; with verbosity "nothing" only if `always`. The next report redraws the bar."""
        self.flush()
        if always or self.verbosity != "nothing":
            self._line(text)

    def _line(self, text: str) -> None:
        self._write(f"\r\x1b[K{text}\n" if self.terminal else f"{text}\n")
        self.bar_visible = False

    def close(self) -> None:
        """Writes the last report, and moves the cursor below the bar."""
        self.flush()
        if self.bar_visible:
            self._write("\n")
            self.bar_visible = False

    def _draw(self, step: int, doing: str) -> None:
        if not self.terminal:
            return
        self.last_drawn, self.bar_visible = time.monotonic(), True
        seconds = math.nan  # Per step, including evaluations and checkpoints between reports.
        if self.timed_from_step is not None and step > self.timed_from_step:
            seconds = (self.last_drawn - self.timed_from) / (step - self.timed_from_step)
        left = lines.duration(seconds * (self.total_steps - step))
        columns = _columns(self.stream) - 1  # A full last column would move the cursor to the next line.
        done = min(1.0, step / max(1, self.total_steps))
        bar = "#" * round(done * BAR_CELLS)
        text = f"{done:4.0%} |{bar:<{BAR_CELLS}}| {step}/{self.total_steps}  {left} left  {doing}"
        self._write(f"\r{text.rstrip()[:columns]}\x1b[K")

    def _write(self, text: str) -> None:
        encoding = self.stream.encoding or "utf-8"
        try:
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stream.flush()
        except OSError:
            pass  # A full disk or a closed pipe must not stop the training.


def _columns(stream: TextIO) -> int:
    """Returns the width of the terminal; 0: `stream` is not a terminal, or has no size."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (AttributeError, OSError, ValueError):
        return 0


def is_terminal(stream: TextIO) -> bool:
    """Returns True if lines of `stream` can be redrawn in place.

    Open MPI gives rank 0 a terminal without a size, even if its own output is a file.
    """
    return _columns(stream) > 0 and stream.isatty() and os.environ.get("TERM") != "dumb"
