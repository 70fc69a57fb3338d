"""starts.jsonl: a line for each start of a run, how long it took and how it ended. Imports no TensorFlow.

The time is that of the chief's process, from the start of its interpreter on. A thread rewrites the line every second,
in place: after a kill it is about as old. Only this thread touches the file, without a lock: a file system that hangs
stops neither the training nor the exit.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfdist.report import files, interpreter

STARTS = "starts.jsonl"
# Bytes of a line; spaces before its end fill it.
_LINE_BYTES = 1536
# Characters of the text of an end: as many as fit.
_TEXT_LENGTHS = (500, 250, 125, 60, 0)
_EVERY_SECONDS = 1.0
# How long the end of a start is waited for until it is on disk.
_END_SECONDS = 5.0
# The last ledger of this process: a script may have several.
_last: "Ledger | None" = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Ledger:
    """How far this start is; made by `open_ledger`."""

    # What the line says besides: job, host, replicas.
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # In seconds since 1970, and as `time.monotonic`: the clock of the host may be set meanwhile.
    started: float = dataclasses.field(default_factory=time.time)
    since: float = dataclasses.field(default_factory=time.monotonic)
    step: int = 0
    # How the start ended, and the last line of trouble; "": it has not ended.
    end: str = ""
    text: str = ""
    # Writes the line; None: nothing does.
    writer: threading.Thread | None = None
    # How many writes were asked for, and how many of them are done; when the last one was asked for, or None.
    asked: int = 0
    done: int = 0
    closed: float | None = None
    lock: threading.Condition = dataclasses.field(default_factory=threading.Condition)

    def note_end(self, end: str, text: str = "") -> bool:
        """Notes how the start ends, and writes it; returns False if that was noted before."""
        with self.lock:
            if self.end:
                return False
            self.end, self.text = end, text
            self._write()
            return True

    def close(self) -> None:
        """Ends the line, at the exit of the process, or before the next fit of a script."""
        with self.lock:
            self.closed = self.closed or time.monotonic()
            self._write()

    def _write(self) -> None:
        """Has the line written, and waits for it, but once only for a file system that hangs."""
        hangs = self.done < self.asked
        self.asked += 1
        number = self.asked
        self.lock.notify_all()
        self.lock.wait_for(lambda: self.writer is None or self.done >= number, 0.0 if hangs else _END_SECONDS)

    def seconds(self) -> float:
        """Returns how long the start has lasted."""
        return (self.closed or time.monotonic()) - self.since

    def line(self) -> bytes:
        """Returns the line as it is now; the caller holds the lock."""
        values = {"start": self.started, "now": time.time(), "step": self.step, "end": self.end, **self.about}
        values["seconds"] = round(self.seconds(), 3)
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
    age = interpreter.age() if _last is None else time.monotonic() - _last.closed
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
                number, closed, line = ledger.asked, ledger.closed is not None, ledger.line()
            with contextlib.suppress(OSError):
                os.pwrite(file.fileno(), line, place)
            with ledger.lock:
                ledger.done = number
                ledger.lock.notify_all()
                ledger.lock.wait_for(lambda: ledger.asked > ledger.done, 0.0 if closed else _EVERY_SECONDS)
    with ledger.lock:
        ledger.writer = None
        ledger.lock.notify_all()
