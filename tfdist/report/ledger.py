"""starts.jsonl: a line for each start of a run, on what its time was spent and how it ended. Imports no TensorFlow.

Each moment of the chief's process, from the start of its interpreter on, belongs to one cause, so that the seconds add
up to its time. A thread rewrites the line every second, in place: after a kill it is about as old. See `CAUSES`. Only
this thread touches the file, without a lock: a file system that hangs stops neither the training nor the exit.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.report import files, interpreter, lines

STARTS = "starts.jsonl"
# start: imports, rendezvous, model, restored checkpoint. compilation: the first execution of the start. steps: the
# others; input: their waiting for data, where steps are timed. checkpoints: what the training waits for them, and the
# export. fault: from the last sign of a lost worker to the end. other: callbacks, checks of the replicas, reports.
CAUSES = ("start", "compilation", "steps", "input", "evaluation", "checkpoints", "other", "fault")
# Bytes of a line; spaces before its end fill it.
_LINE_BYTES = 1536
# Characters of the text of an end: as many as fit.
_TEXT_LENGTHS = (500, 250, 125, 60, 0)
_EVERY_SECONDS = 1.0
# How long the end of a start is waited for until it is on disk.
_END_SECONDS = 5.0
# Smaller parts of the whole are not named.
_SMALL = 0.01
# The last ledger of this process: a script may have several.
_last: "Ledger | None" = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Ledger:
    """What the time of this start is spent on; made by `open_ledger`."""

    # What the line says besides: job, host, replicas.
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # In seconds since 1970.
    started: float = dataclasses.field(default_factory=time.time)
    step: int = 0
    # Whether this start has executed training steps.
    executed: bool = False
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    # The present cause and since when, as `time.monotonic`: the clock of the host may be set meanwhile.
    cause: str = "start"
    since: float = dataclasses.field(default_factory=time.monotonic)
    # The seconds of the present cause since it was entered, or since the last execution.
    unbroken: float = 0.0
    # How the start ended, and the last line of trouble; "": it has not ended.
    end: str = ""
    text: str = ""
    # Writes the line; None: nothing does.
    writer: threading.Thread | None = None
    # How many writes were asked for, and how many of them are done; whether the last one was asked for.
    asked: int = 0
    done: int = 0
    closed: bool = False
    lock: threading.Condition = dataclasses.field(default_factory=threading.Condition)

    def enter(self, cause: str) -> str:
        """Counts the time from now on to `cause`; returns the cause before."""
        with self.lock:
            self._count()
            before, self.cause, self.unbroken = self.cause, cause, 0.0
            return before

    @contextlib.contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """Counts the time of a block to `cause`."""
        before = self.enter(cause)
        try:
            yield
        finally:
            self.enter(before)

    def execution(self) -> contextlib.AbstractContextManager[None]:
        """Counts the time of a block, an execution of training steps, to "steps"; of the first to "compilation"."""
        return self.during("steps" if self.executed else "compilation")

    def note_execution(self, step: int, wait_seconds: float) -> None:
        """Notes that an execution has ended after `step`, in which so long was waited for data."""
        with self.lock:
            self._count()
            self.step, self.executed, self.unbroken = step, True, 0.0
            moved = min(wait_seconds, self.seconds["steps"])
            self.seconds["steps"] -= moved
            self.seconds["input"] += moved

    def note_end(self, end: str, text: str = "") -> bool:
        """Notes how the start ends, and writes it; returns False if that was noted before."""
        with self.lock:
            if self.end:
                return False
            if end == "lost":
                self._count()
                self.seconds[self.cause] -= self.unbroken
                self.seconds["fault"] += self.unbroken
            self.end, self.text = end, text
            self._write()
            return True

    def close(self) -> None:
        """Counts the rest of the process, its shutdown, to "other"; at its exit, or before the next fit of a script."""
        with self.lock:
            if self.writer is not None:
                self.enter("other")
                self.closed = True
                self._write()

    def _write(self) -> None:
        """Has the line written, and waits for it, but once only for a file system that hangs."""
        hangs = self.done < self.asked
        self.asked += 1
        number = self.asked
        self.lock.notify_all()
        self.lock.wait_for(lambda: self.writer is None or self.done >= number, 0.0 if hangs else _END_SECONDS)

    def describe(self) -> str:
        """Returns how long the start has lasted, and its parts: "0:01:40 in this start: 92% steps, 5% start"."""
        self.enter(self.cause)
        whole = sum(self.seconds.values())
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        shares = [f"{value / whole:.0%} {name}" for name, value in parts if value >= _SMALL * whole]
        return f"{lines.duration(whole)} in this start: {', '.join(shares)}"

    def _count(self) -> None:
        before, self.since = self.since, time.monotonic()
        self.seconds[self.cause] += self.since - before
        self.unbroken += self.since - before

    def line(self) -> bytes:
        """Returns the line as it is now; the caller holds the lock."""
        self._count()
        values = {"start": self.started, "now": time.time(), "step": self.step, "end": self.end, **self.about}
        values["seconds"] = {name: round(value, 3) for name, value in self.seconds.items()}
        for most in _TEXT_LENGTHS:  # A character may take 6 bytes, or 12.
            line = json.dumps(files.nan_to_null(values | {"text": self.text[:most]})).encode()
            if len(line) < _LINE_BYTES:
                break
        return line.ljust(_LINE_BYTES - 1) + b"\n"


def open_ledger(workdir: str | os.PathLike[str] | None, step: int, about: Mapping[str, Any]) -> Ledger:
    """Opens the ledger of this start, which counts from the start of the interpreter, or from the end of its last fit.

    Nothing is written without a workdir. The run starts or resumes after `step`; `about` is what else the line says.
    """
    global _last
    if _last is not None:
        _last.close()
    age = interpreter.age() if _last is None else time.monotonic() - _last.since
    started, since = time.time() - age, time.monotonic() - age
    ledger = Ledger(about=about, started=started, since=since, step=step)
    _last = ledger
    if workdir is None:
        return ledger
    path = os.path.join(workdir, STARTS)
    ledger.writer = threading.Thread(target=_write_always, args=(ledger, path), name="tfdist-ledger", daemon=True)
    try:
        ledger.writer.start()
    except RuntimeError:  # No more threads. Training does not need it.
        ledger.writer = None
    atexit.register(ledger.close)
    return ledger


def _write_always(ledger: Ledger, path: str) -> None:
    with contextlib.suppress(OSError), open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        place = size - size % _LINE_BYTES  # An incomplete line of a full disk is replaced.
        closed = False
        while not closed:
            with ledger.lock:
                number, closed, line = ledger.asked, ledger.closed, ledger.line()
            with contextlib.suppress(OSError):
                os.pwrite(file.fileno(), line, place)
            with ledger.lock:
                ledger.done = number
                ledger.lock.notify_all()
                ledger.lock.wait_for(lambda: ledger.asked > ledger.done, 0.0 if closed else _EVERY_SECONDS)
    with ledger.lock:
        ledger.writer = None
        ledger.lock.notify_all()
