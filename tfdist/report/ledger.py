"""starts.jsonl: a line for each start of a run, how long it took and how it ended. Imports no TensorFlow.

The time is that of the chief's process, from the start of its interpreter on. A thread rewrites the line every second,
in place: after a kill it is about as old. Only this thread touches the file: a file system that hangs stops neither the
training nor the exit.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfdist.report import files, interpreter

STARTS = "starts.jsonl"
# Bytes of a line, which spaces fill, and of the text of an end; JSON may need two for each of these.
_LINE_BYTES, _TEXT_BYTES = 1536, 400
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
    # As `time.monotonic`: the clock of the host may be set meanwhile.
    since: float = dataclasses.field(default_factory=time.monotonic)
    closed: float | None = None
    step: int = 0
    # How the start ended, and the last line of trouble; "": it has not ended.
    end: str = ""
    text: str = ""
    # Each is set when the line has been written; None: nothing writes. The last one that was asked for.
    requests: queue.SimpleQueue[threading.Event] | None = None
    asked: threading.Event | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

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
        self.closed = self.closed or time.monotonic()
        self._write()

    def _write(self) -> None:
        """Has the line written, and waits for it, but once only for a file system that hangs."""
        requests = self.requests
        if requests is not None:
            hangs = self.asked is not None and not self.asked.is_set()
            self.asked = threading.Event()
            requests.put(self.asked)
            self.asked.wait(0.0 if hangs else _END_SECONDS)

    def seconds(self) -> float:
        """Returns how long the start has lasted."""
        return (self.closed or time.monotonic()) - self.since

    def line(self) -> bytes:
        """Returns the line as it is now."""
        now, seconds = time.time(), self.seconds()
        values = {"start": now - seconds, "now": now, "step": self.step, "end": self.end, **self.about}
        letters = self.text[:_TEXT_BYTES]
        values["text"] = "".join(one if one.isascii() and one.isprintable() else "?" for one in letters)
        values["seconds"] = round(seconds, 3)
        return json.dumps(files.nan_to_null(values)).encode().ljust(_LINE_BYTES - 1) + b"\n"


def open_ledger(workdir: str | os.PathLike[str] | None, step: int, about: Mapping[str, Any]) -> Ledger:
    """Opens the ledger of this start, which counts from the start of the interpreter, or from the end of its last fit.

    Nothing is written without a workdir. The run starts or resumes after `step`; `about` is what else the line says.
    """
    global _last
    if _last is not None:
        _last.close()
    since = time.monotonic() - interpreter.age() if _last is None else _last.closed
    ledger = _last = Ledger(about=about, since=since, step=step)
    if workdir is not None:
        ledger.requests = queue.SimpleQueue()
        path = os.path.join(workdir, STARTS)
        writer = threading.Thread(target=_write_always, args=(ledger, path), name="tfdist-ledger", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # No more threads. Training does not need it.
            ledger.requests = None
        atexit.register(ledger.close)
    return ledger


def _write_always(ledger: Ledger, path: str) -> None:
    requests = ledger.requests
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            place = size - size % _LINE_BYTES  # An incomplete line of a full disk is replaced.
            request, closed = None, False
            while not closed:
                closed = ledger.closed is not None
                with contextlib.suppress(OSError):
                    os.pwrite(file.fileno(), ledger.line(), place)
                if request is not None:
                    request.set()
                request = None
                with contextlib.suppress(queue.Empty):
                    request = requests.get(timeout=0.0 if closed else _EVERY_SECONDS)
    except OSError:
        pass
    ledger.requests = None
    while not requests.empty():
        requests.get().set()
