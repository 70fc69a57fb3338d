"""starts.jsonl: a line for each start of a run, how long it took and how it ended. Imports no TensorFlow.

The time counts from the first import of tfdist on the chief. While the run trains, its line is rewritten in place with
each report, so after a kill it is as old as the last report.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfdist import report
from tfdist.report import files

STARTS = "starts.jsonl"
# The bytes of a line, which is padded with spaces, and of the text in it. JSON may write each of these as six.
_LINE_BYTES, _TEXT_BYTES = 1536, 200
# Whether this process has opened a ledger: a script may open several.
_opened = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Ledger:
    """The progress of this start; nothing is written without a `path`."""

    path: str | None = None
    # Further values of the line: job, host, replicas.
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # By `time.monotonic`, because the clock of the host may be changed.
    since: float = dataclasses.field(default_factory=time.monotonic)
    # The last finished step.
    step: int = 0
    # Where the line begins in the file; None: not known yet.
    place: int | None = None
    # The thread that acquires it writes the end; it is never released.
    ending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def note_end(self, end: str, text: str = "") -> bool:
        """Writes how the start ends, and the error's message; returns False if an end was written before."""
        first = self.ending.acquire(blocking=False)
        if first:
            self.write(end, text)
        return first

    def seconds(self) -> float:
        """Returns how long the start has lasted."""
        return time.monotonic() - self.since

    def write(self, end: str = "", text: str = "") -> None:
        """Writes the line as it is now; an error is ignored, as training does not need it."""
        if self.path is None:
            return
        now, seconds = time.time(), self.seconds()
        values = {**self.about, "start": now - seconds, "now": now, "seconds": round(seconds, 3), "step": self.step}
        values |= {"end": end, "text": text.encode("ascii", "replace").decode()[:_TEXT_BYTES]}
        line = json.dumps(files.nan_to_null(values)).encode().ljust(_LINE_BYTES - 1) + b"\n"
        with (
            contextlib.suppress(OSError),
            files.waiting(self.path),
            open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file,
        ):
            if self.place is None:
                size = os.fstat(file.fileno()).st_size
                self.place = size - size % _LINE_BYTES  # An incomplete line of a full disk is replaced.
            os.pwrite(file.fileno(), line, self.place)


def open_ledger(workdir: str | os.PathLike[str] | None, step: int, about: Mapping[str, Any]) -> Ledger:
    """Opens the ledger of this start. Its time begins at the first import of tfdist, or now for a later `fit`.

    Nothing is written without a workdir. The run starts or resumes after `step`; `about`: further values of the line.
    """
    global _opened
    path = None if workdir is None else os.path.join(workdir, STARTS)
    ledger = Ledger(path=path, about=about, since=time.monotonic() if _opened else report.began, step=step)
    _opened = True
    ledger.write()
    return ledger
