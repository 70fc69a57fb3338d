"""starts.jsonl: a line for each start of a run, how long it took and how it ended. Imports no TensorFlow.

The time is that of the chief's process. While the run trains, its line is rewritten in place, at most once a second:
after a kill it is about as old. Threads write it: a file system that hangs stops neither the training nor the exit.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfdist.report import files

STARTS = "starts.jsonl"
# Bytes of a line, which spaces fill, and of the text of an end; JSON may need two for each of these.
_LINE_BYTES, _TEXT_BYTES = 1536, 400
_EVERY_SECONDS = 1.0
# How long the end of a start is waited for until it is on disk.
_END_SECONDS = 5.0
# Whether this process has opened a ledger: a script may open several.
_opened = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Ledger:
    """How far this start is; nothing is written without a `path`."""

    path: str | None = None
    # What the line says besides: job, host, replicas.
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # As `time.monotonic`: the clock of the host may be set meanwhile.
    since: float = dataclasses.field(default_factory=time.monotonic)
    step: int = 0
    # How the start ended, and the last line of trouble; "": it has not ended.
    end: str = ""
    text: str = ""
    # Where the line begins in the file; None: not known yet.
    place: int | None = None
    writer: threading.Thread | None = None
    written: float = -_EVERY_SECONDS
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def note_step(self, step: int) -> None:
        """Notes the last finished step."""
        self.step = step
        if time.monotonic() - self.written >= _EVERY_SECONDS:
            self._start_writing()

    def note_end(self, end: str, text: str = "") -> bool:
        """Notes how the start ends, and writes it; returns False if that was noted before."""
        with self.lock:
            if self.end:
                return False
            self.end, self.text = end, text
        until = time.monotonic() + _END_SECONDS
        self._wait_until(until)  # What is being written may be older.
        self._start_writing()
        self._wait_until(until)
        return True

    def _wait_until(self, until: float) -> None:
        if self.writer is not None:
            self.writer.join(max(0.0, until - time.monotonic()))

    def seconds(self) -> float:
        """Returns how long the start has lasted."""
        return time.monotonic() - self.since

    def _start_writing(self) -> None:
        """Has the line as it is now written, unless the one before still is."""
        with self.lock:
            if self.path is None or (self.writer is not None and self.writer.is_alive()):
                return
            self.written, seconds = time.monotonic(), self.seconds()
            values = {"start": time.time() - seconds, "now": time.time(), "step": self.step, "end": self.end}
            letters = self.text[:_TEXT_BYTES]
            text = "".join(one if one.isascii() and one.isprintable() else "?" for one in letters)
            values |= {**self.about, "text": text, "seconds": round(seconds, 3)}
            line = json.dumps(files.nan_to_null(values)).encode().ljust(_LINE_BYTES - 1) + b"\n"
            writer = threading.Thread(target=self._write, args=(line,), name="tfdist-ledger", daemon=True)
            with contextlib.suppress(RuntimeError):  # No more threads. Training does not need it.
                writer.start()
                self.writer = writer

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError), open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            if self.place is None:
                size = os.fstat(file.fileno()).st_size
                self.place = size - size % _LINE_BYTES  # An incomplete line of a full disk is replaced.
            os.pwrite(file.fileno(), line, self.place)


def open_ledger(workdir: str | os.PathLike[str] | None, step: int, about: Mapping[str, Any]) -> Ledger:
    """Opens the ledger of this start, which counts from the start of the process, or from now for a later `fit` in it.

    Nothing is written without a workdir. The run starts or resumes after `step`; `about` is what else the line says.
    """
    global _opened
    path = None if workdir is None else os.path.join(workdir, STARTS)
    ledger = Ledger(path=path, about=about, since=time.monotonic() - (0.0 if _opened else process_age()))
    _opened = True
    ledger.note_step(step)
    return ledger


def process_age(pid: int | None = None) -> float:
    """Returns the seconds since a process, by default this one, was started; psutil.NoSuchProcess: it has ended."""
    import psutil  # Some 20 ms, which a command without a run does not need.

    started = psutil.Process(pid).create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.time() - started
    # On Linux psutil adds the time of the boot, in whole seconds, to a precise time since the boot.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started - psutil.boot_time())
