"""Console output of a run: a progress bar on a terminal, one line per interval in a file. Imports no TensorFlow."""

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
    """The console output of a run; created by `open_console`."""

    stream: TextIO
    # True if lines can be redrawn in place.
    terminal: bool
    total_steps: int
    # "all", "events" (no interval and evaluation lines) or "nothing".
    verbosity: str = "all"
    # Step and time of the first report, after compilation; the time left is estimated from there.
    timed_from_step: int | None = None
    timed_from: float = 0.0
    # Last reported text beside the bar; time of the last redraw; True while the bar is on the screen.
    status: list[str] = dataclasses.field(default_factory=list)
    last_drawn: float = -math.inf
    bar_visible: bool = False

    def train(self, step: int, parts: list[str], *, step_seconds: float) -> None:
        """Reports an interval that ended at `step`: redraws the bar, or writes a line.

        Args:
            step: the last step of the interval.
            parts: the values to show, most important first; a narrow terminal shows the first ones only.
            step_seconds: mean duration of its steps, in seconds.
        """
        left = self._time_left(step, step_seconds)
        self.status = parts
        if self.verbosity != "all":
            return
        if self.terminal:
            self._write(self._bar(step, left, ""))
        else:
            self._write("  ".join([f"step {step}/{self.total_steps}", *parts, left]) + "\n")

    def progress(self, step: int, doing: str) -> None:
        """Redraws the bar on a terminal, at most ten times a second, with the activity `doing` unless it is empty."""
        if self.verbosity == "all" and self.terminal and time.monotonic() - self.last_drawn >= REDRAW_SECONDS:
            self._write(self._bar(step, self._time_left(step, math.nan), doing))

    def evaluation(self, text: str) -> None:
        """Writes the line of an evaluation."""
        if self.verbosity == "all":
            self.line(text)

    def line(self, text: str) -> None:
        """Writes a permanent line; the next report redraws the bar below it."""
        if self.verbosity == "nothing":
            return
        self._write(f"\r\x1b[K{text}\n" if self.terminal else f"{text}\n")
        self.bar_visible = False

    def close(self) -> None:
        """Moves the cursor below the bar."""
        if self.bar_visible:
            self._write("\n")
            self.bar_visible = False

    def _time_left(self, step: int, step_seconds: float) -> str:
        now = time.monotonic()
        if self.timed_from_step is None:
            self.timed_from_step, self.timed_from = step, now
        elif step > self.timed_from_step:  # Includes evaluations and checkpoints between reports.
            step_seconds = (now - self.timed_from) / (step - self.timed_from_step)
        return f"{duration(step_seconds * (self.total_steps - step))} left"

    def _bar(self, step: int, left: str, doing: str) -> str:
        self.last_drawn, self.bar_visible = time.monotonic(), True
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
            pass  # A full disk or a closed pipe must not stop the training.


def open_console(stream: TextIO, total_steps: int, verbosity: str = "all") -> Console:
    """Returns a console on `stream`: with a bar if it is a terminal with escape codes, else with lines only."""
    return Console(stream=stream, terminal=is_terminal(stream), total_steps=total_steps, verbosity=verbosity)


def is_terminal(stream: TextIO) -> bool:
    """Returns True if lines of `stream` can be redrawn in place."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


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
