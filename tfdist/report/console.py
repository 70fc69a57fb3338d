"""What people read while a run lasts: a bar on a terminal, one line an interval in a file. Imports no TensorFlow."""

import dataclasses
import math
import os
import shutil
import time
from typing import TextIO

REDRAW_SECONDS = 0.1
WIDEST_BAR = 40
NARROWEST_BAR = 8


@dataclasses.dataclass(slots=True, kw_only=True)
class Console:
    """The stream a run writes to; made by `open_console`."""

    stream: TextIO
    # Whether lines can be redrawn in place.
    terminal: bool
    total_steps: int
    # "all", "events" (no intervals, no evaluations) or "nothing".
    says: str = "all"
    # The step and the moment from which the pace is measured: the end of the first report, when all is compiled.
    pace_step: int | None = None
    pace_time: float = 0.0
    # What stands beside the bar, as last reported; when the bar was last drawn, and whether it is to be seen now.
    status: list[str] = dataclasses.field(default_factory=list)
    drawn_time: float = -math.inf
    drawn: bool = False

    def train(self, step: int, parts: list[str], *, step_seconds: float) -> None:
        """Reports an interval that ended at `step`: redraws the bar, or writes a line.

        Args:
            step: the step with which the interval ended.
            parts: what is known of it, the most important first: a narrow terminal shows as many as fit.
            step_seconds: how long one step of it took.
        """
        left = self._left(step, step_seconds)
        self.status = parts
        if self.says != "all":
            return
        if self.terminal:
            self._write(self._bar(step, left, ""))
        else:
            self._write("  ".join([f"step {step}/{self.total_steps}", *parts, left]) + "\n")

    def progress(self, step: int, doing: str) -> None:
        """Redraws the bar on a terminal, at most ten times a second; `doing` is said beside it when not empty."""
        if self.says == "all" and self.terminal and time.monotonic() - self.drawn_time >= REDRAW_SECONDS:
            self._write(self._bar(step, self._left(step, math.nan), doing))

    def evaluation(self, text: str) -> None:
        """Writes the line of an evaluation, which stays."""
        if self.says == "all":
            self.line(text)

    def line(self, text: str) -> None:
        """Writes a line that stays; the bar goes on below it with the next report."""
        if self.says == "nothing":
            return
        self._write(f"\r\x1b[K{text}\n" if self.terminal else f"{text}\n")
        self.drawn = False

    def close(self) -> None:
        """Leaves the cursor below the bar."""
        if self.drawn:
            self._write("\n")
            self.drawn = False

    def _left(self, step: int, step_seconds: float) -> str:
        now = time.monotonic()
        if self.pace_step is None:
            self.pace_step, self.pace_time = step, now
        elif step > self.pace_step:  # Everything between reports counts: evaluations and checkpoints too.
            step_seconds = (now - self.pace_time) / (step - self.pace_step)
        return f"{duration(step_seconds * (self.total_steps - step))} left"

    def _bar(self, step: int, left: str, doing: str) -> str:
        self.drawn_time, self.drawn = time.monotonic(), True
        columns = self._columns() - 1  # A full last column would move the cursor to the next line.
        done = min(1.0, step / max(1, self.total_steps))
        text = "  ".join(filter(None, [doing, f"{step}/{self.total_steps}", left]))
        room = columns - len(f"{done:4.0%} || ")
        for part in self.status:
            if len(f"{text}  {part}") + NARROWEST_BAR > room:
                break
            text = f"{text}  {part}"
        cells = min(WIDEST_BAR, room - len(text))
        bar = "#" * round(done * cells)
        drawn = f"{done:4.0%} |{bar:<{cells}}| {text}" if cells >= NARROWEST_BAR else f"{done:4.0%} {text}"
        return f"\r{drawn[:columns]}\x1b[K"

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self.stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return columns or shutil.get_terminal_size().columns

    def _write(self, text: str) -> None:
        encoding = self.stream.encoding or "utf-8"
        try:
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stream.flush()
        except OSError:
            pass  # A log file on a full disk, or a reader that went away, does not end the training.


def open_console(stream: TextIO, total_steps: int, says: str = "all") -> Console:
    """Looks at what `stream` is: a terminal that understands escape codes, or a file or pipe."""
    return Console(stream=stream, terminal=is_terminal(stream), total_steps=total_steps, says=says)


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be redrawn in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def number(value: float) -> str:
    """Four digits that mean something: `0.4321`, `12.50`, `3.100e-05`, `51,200`."""
    return f"{value:,.0f}" if 999.95 <= abs(value) < 1e15 else f"{value:#.4g}"


def rate(value: float) -> str:
    """A number of things per second: `12,346`, `3.24`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`1:02:03` for 3723 seconds; `-:--:--` where the time is not known."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
