"""Writes checkpoints in a thread while training continues. Failed writes are reported; training continues.

Only the chief saves. While the workdir is full, read-only or unavailable, checkpoints that are due are skipped. While
it is slow, `save` waits up to `_MAX_WAIT_SECONDS` for the previous checkpoints. After that, the new checkpoint replaces
one that is still queued.
"""

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.checkpoint import directory as directory_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import workdir_lock
from tfdist.report import files

# Maximum wait of `save` for previous checkpoints. After that, it drops the checkpoint that is still queued.
_MAX_WAIT_SECONDS = 30.0
# Temporary files of `files.replace_file`: NAME.PID-TOKEN.tmp.
_TEMPORARY = f"*.[0-9]*-{'[0-9a-f]' * 8}.tmp"
# Files that a killed run may leave: pattern -> the age in seconds at which the next start removes them. The first table
# is of the directory of checkpoints, the second one of the workdir, which may also hold the user's files.
_LEFTOVERS = {"*.writing": 0, "*.removing": 0, _TEMPORARY: 3600, "*.damaged": 7 * 86400}
_LEFTOVERS_IN_WORKDIR = {
    "model.writing.keras": 0,
    _TEMPORARY: 3600,
    f"tensorboard/{_TEMPORARY}": 3600,
    f"tensorboard/*/{_TEMPORARY}": 3600,
    ".tfdist-*": 3600,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    step: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]


class AsyncCheckpointer:
    """Writes checkpoints in a thread, one at a time. Used on the chief; only the main thread calls its methods.

    Args:
        keep: how many of the newest checkpoints stay.
        warn: called with one line for each failed or skipped checkpoint.
    """

    def __init__(self, directory: Path, keep: int, warn: Callable[[str], None]):
        self._directory, self._keep, self._warn = directory, keep, warn
        # The step of the last `save`.
        self._newest_step: int | None = None
        # Duration of the slowest write, in seconds; None before the first.
        self.longest_write_seconds: float | None = None
        # Guards the fields below, which the thread also uses.
        self._changed = threading.Condition()
        # The checkpoint that is being written, and at most one that waits.
        self._queue: list[_Snapshot] = []
        # Steps of checkpoints on disk that this process has written or restored.
        self._valid_steps: set[int] = set()
        # Warnings of the thread for the main thread.
        self._texts: list[str] = []

    def remove_partial(self, restored: checkpoint_format.Saved | None) -> None:
        """Removes what a killed run left in its workdir, and records that `restored` is valid.

        This run must hold the workdir's lock. Incomplete checkpoints and those that are no longer kept are removed at
        once; temporary files, which other processes may be writing, after an hour; damaged checkpoints after a week.
        """
        for directory, leftovers, remove in (
            (self._directory, _LEFTOVERS, _remove),
            (self._directory.parent, _LEFTOVERS_IN_WORKDIR, Path.unlink),
        ):
            for pattern, age in leftovers.items():
                for path in directory.glob(pattern):
                    with contextlib.suppress(OSError):
                        if path.name != workdir_lock.LOCK and time.time() - path.lstat().st_ctime >= age:
                            remove(path)
        if restored is not None:
            self._valid_steps.add(restored.step)
            self._update_directory(restored.step, restored.state)  # The run may have been killed before this.

    def save(self, step: int, snapshot: Callable[[], dict[str, np.ndarray]], state: dict[str, Any]) -> None:
        """Starts writing the checkpoint of `step`; first waits up to `_MAX_WAIT_SECONDS` for the previous one.

        Args:
            snapshot: copies all values to host memory. Called after the wait, when at most one other copy is in
                memory; not called if `step` is saved already.
            state: the state of the training loop, JSON values.
        """
        self.wait_until_idle(_MAX_WAIT_SECONDS)
        self._newest_step = step
        with self._changed:
            is_saved = step in self._valid_steps
            if not is_saved and any(step == each.step for each in self._queue):
                return
        if is_saved:  # Its evaluation may be new: a run that was stopped before it has now evaluated this step.
            self._update_directory(step, state)
            return
        with self._changed:
            if len(self._queue) > 1:
                self._queue_warning(
                    f"{self._directory} is slow: the checkpoint of step {self._queue[0].step} is still being written; "
                    f"skipped the checkpoint of step {self._queue.pop().step}. Training continues."
                )
        self._report()
        copied = _Snapshot(step=step, arrays=snapshot(), state=state)
        with self._changed:
            self._queue.append(copied)
            if len(self._queue) == 1:
                try:
                    threading.Thread(target=self._write_all, name="checkpoint").start()
                except RuntimeError as error:  # The limits of the job allow no more threads.
                    self._queue.clear()
                    self._warn_not_written(step, error)

    def wait(self) -> bool:
        """Waits until all checkpoints are written. Returns False if the newest one failed; the cause was reported."""
        with files.waiting(self._directory):
            if not self.wait_until_idle(_MAX_WAIT_SECONDS):
                text = f"{self._directory} is slow: waiting for the checkpoint of step {self._newest_step}."
                self._warn(f"WARNING: {text}")
                self.wait_until_idle(None)
        return self._newest_step is None or self._newest_step in self._valid_steps

    def wait_until_idle(self, seconds: float | None) -> bool:
        """Waits up to `seconds` (None: no limit) for all writes; returns whether they are done."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not self._queue, seconds)
        self._report()
        return idle

    def _queue_warning(self, text: str) -> None:
        with self._changed:
            self._texts.append(f"WARNING: {text}")

    def _warn_not_written(self, step: int, error: Exception) -> None:
        self._queue_warning(
            f"the checkpoint of step {step} could not be written to {self._directory}: {files.describe_error(error)}. "
            "Training continues; the previous checkpoint is untouched."
        )

    def _report(self) -> None:
        with self._changed:
            texts, self._texts = self._texts, []
        for text in texts:
            self._warn(text)

    def _write_all(self) -> None:
        """The body of the thread: writes snapshots until none is left."""
        more = True
        while more:
            started = time.monotonic()
            self._write(self._queue[0])
            self.longest_write_seconds = max(self.longest_write_seconds or 0.0, time.monotonic() - started)
            with self._changed:
                del self._queue[0]
                more = bool(self._queue)
                self._changed.notify_all()

    def _write(self, snapshot: _Snapshot) -> None:
        try:
            checkpoint_format.write(self._directory, snapshot.step, snapshot.arrays, snapshot.state)
        except Exception as error:  # Any error, such as MemoryError: the checkpoint must not count as written.
            self._warn_not_written(snapshot.step, error)
        else:
            with self._changed:
                self._valid_steps.add(snapshot.step)
            self._update_directory(snapshot.step, snapshot.state)

    def _update_directory(self, step: int, state: Mapping[str, Any]) -> None:
        """Writes best.json if `step` is the best according to its `state`; removes checkpoints no longer kept."""
        try:
            if state.get("best_step") == step and state.get("best") is not None:
                best = {"step": step, "metric": state["best_of"].partition(",")[0], "value": state["best"]}
                files.write_json(str(self._directory / directory_lib.BEST), best)
            self._remove_old(step, state)
        except Exception as error:
            self._queue_warning(f"after the save of step {step}: {type(error).__name__}: {error}. Training continues.")

    def _remove_old(self, newest: int, state: Mapping[str, Any]) -> None:
        """Removes checkpoints before `newest` that are no longer kept; `state`: that of `newest`."""
        steps = directory_lib.steps(self._directory)
        best = directory_lib.read_best(self._directory)
        # Keep the best one even if best.json is damaged or not written yet.
        kept = {step for step in steps if step > newest} | {state.get("best_step") or None, best and best["step"]}
        kept.update([step for step in steps if step <= newest][: self._keep])
        for step in sorted({*steps} - kept):
            # Rename first: an interrupted removal must not look like a damaged checkpoint.
            path = directory_lib.step_path(self._directory, step)
            removing = path.with_name(path.name + ".removing")
            try:
                os.replace(path, removing)
                _remove(removing)
            except OSError as error:
                self._queue_warning(
                    f"the checkpoint of step {step} is no longer kept, and could not be removed from "
                    f"{self._directory}: {files.describe_error(error)}. Remove it by hand. Training continues."
                )


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
