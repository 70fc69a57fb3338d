"""Writes checkpoints beside the training, and the model at its end; what cannot be written is said, and survived.

The chief alone saves. A full, read-only or vanished workdir costs the checkpoints that fall due meanwhile, and nothing
else; a slow one holds the training up for half a minute at most, and then costs checkpoints, too.
"""

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import config as config_lib
from tfdist.checkpoint import directory as directory_lib
from tfdist.checkpoint import export
from tfdist.checkpoint import format as checkpoint_format
from tfdist.report import files

# How long a save waits for the one before, in seconds; afterwards, what waited before it to be written is left out.
_PATIENCE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    step: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]


class AsyncCheckpointer:
    """Writes checkpoints in a thread, one at a time; made by the chief alone, whose main thread calls all methods."""

    def __init__(self, directory: Path, options: config_lib.Checkpoint, report: Callable[[str], None]):
        self._directory = directory
        self._options = options
        self._report = report
        self._good_steps: set[int] = set()
        # Shared with the thread: what it is busy with and what waits for it; of which steps best.json shall say that
        # they are the best, once they are written; what came of all that, unread yet.
        self._changed = threading.Condition()
        self._busy: int | None = None
        self._waiting: _Snapshot | None = None
        self._marks: dict[int, dict[str, Any]] = {}
        self._unwritten: set[int] = set()
        self._results: list[tuple[int, Exception | None]] = []
        # The step that was asked for last.
        self._asked: int | None = None
        # What the longest writing has taken; None before the first.
        self.seconds: float | None = None

    def tidy(self, restored: checkpoint_format.Saved | None) -> None:
        """Removes what a killed run left half-written, and notes the checkpoint that is known to be whole."""
        for path in self._directory.glob("*"):
            if path.name.endswith((".writing", ".removing")):
                shutil.rmtree(path, ignore_errors=True)
        if restored is not None:
            self._good_steps.add(restored.step)

    def save(self, step: int, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> None:
        """Begins to write `arrays` and `state` as the checkpoint of `step`; first waits a while for the one before."""
        self._await_idle(_PATIENCE_SECONDS)
        self._asked = step
        if step in self._good_steps | self._unwritten:
            return
        with self._changed:
            late, self._waiting = self._waiting, _Snapshot(step=step, arrays=arrays, state=state)
            busy = self._busy
            if busy is None:
                threading.Thread(target=self._work, name="checkpoint").start()
                self._busy = step
            self._unwritten.add(step)
            if late is not None:
                self._unwritten.discard(late.step)
                self._marks.pop(late.step, None)
        if late is not None:
            self._report(
                f"WARNING: {self._directory} is slow: the checkpoint of step {busy} is still being written, and that "
                f"of step {late.step} is left out. Training goes on."
            )

    def wait(self) -> bool:
        """Waits until all is written. Returns False if the newest checkpoint is not; why has been reported."""
        if not self._await_idle(_PATIENCE_SECONDS):
            self._report(f"WARNING: {self._directory} is slow: the checkpoint of step {self._asked} is awaited.")
            self._await_idle(None)
        return self._asked is None or self._asked in self._good_steps

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Records that the checkpoint of `step` is the best so far, as soon as it is written; never if it fails."""
        best = {"step": step, "metric": metric, "value": value}
        with self._changed:
            if step in self._unwritten:
                self._marks[step] = best
                return
        self._collect()
        if step in self._good_steps:
            self._write_best(best)
            self._collect()

    def _await_idle(self, seconds: float | None) -> bool:
        with self._changed:
            idle = self._changed.wait_for(lambda: self._busy is None, seconds)
        self._collect()
        return idle

    def _collect(self) -> None:
        """Reports what the thread could not write, and notes what it has."""
        with self._changed:
            results, self._results = self._results, []
        for step, error in results:
            if error is None:
                self._good_steps.add(step)
            elif isinstance(error, _BestError):
                self._report(
                    f"WARNING: {self._directory / directory_lib.BEST} could not be written: {error}. Training goes on; "
                    f"it does not say that step {step} is the best."
                )
            else:
                self._report(
                    f"WARNING: the checkpoint of step {step} could not be written to {self._directory}: "
                    f"{export.reason(error)}. Training goes on; the previous checkpoint is untouched."
                )

    def _work(self) -> None:
        """Writes until nothing waits; the thread's body."""
        while True:
            with self._changed:
                snapshot, self._waiting = self._waiting, None
                self._busy = None if snapshot is None else snapshot.step
                if snapshot is None:
                    self._changed.notify_all()
                    return
            error: Exception | None = None
            started = time.monotonic()
            try:
                checkpoint_format.write(self._directory, snapshot.step, snapshot.arrays, snapshot.state)
            except Exception as caught:  # Whatever it is (no memory, say): the checkpoint must not count as written.
                error = caught
            self.seconds = max(self.seconds or 0.0, time.monotonic() - started)
            with self._changed:
                self._results.append((snapshot.step, error))
                self._unwritten.discard(snapshot.step)
                best = self._marks.pop(snapshot.step, None)
            if error is None:
                if best is not None:
                    self._write_best(best)
                with contextlib.suppress(OSError):  # The next save comes by again.
                    self._remove_old(snapshot.step, snapshot.state.get("regular"))

    def _write_best(self, best: dict[str, Any]) -> None:
        try:
            files.write_json(str(self._directory / directory_lib.BEST), best)
        except OSError as error:
            with self._changed:
                self._results.append((best["step"], _BestError(export.reason(error))))

    def _remove_old(self, newest: int, regular: int | None) -> None:
        best = directory_lib.read_best(self._directory)
        steps = directory_lib.steps(self._directory)
        kept = [step for step in steps if step <= newest][: self._options.keep]
        for step in steps:
            # What a diverged run goes back to stays, however many stops have been saved since.
            needed = step in (*kept, regular) or (best is not None and step == best["step"])
            if step < newest and not needed:
                # Renamed first: half a removal must not look like a damaged checkpoint.
                path = directory_lib.step_path(self._directory, step)
                aside = path.with_name(path.name + ".removing")
                os.replace(path, aside)
                shutil.rmtree(aside, ignore_errors=True)


class _BestError(Exception):
    """best.json could not be written."""
