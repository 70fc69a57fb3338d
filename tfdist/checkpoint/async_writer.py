"""Writes checkpoints in a thread while training continues. Failed writes are reported; training continues.

Only the chief saves. If the workdir is full, read-only or unavailable, the checkpoints due in that time are skipped. If
it is slow, a save waits for the previous one for up to `_MAX_WAIT_SECONDS`; then checkpoints are skipped as well.
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

from tfdist import config as config_lib
from tfdist.checkpoint import directory as directory_lib
from tfdist.checkpoint import export, workdir_lock
from tfdist.checkpoint import format as checkpoint_format
from tfdist.report import files

# The longest wait of `save` for the previous checkpoint. After that, it skips the new one.
_MAX_WAIT_SECONDS = 30.0
# Checkpoints in a row that found no workdir, after which the run ends.
_MAX_MISSING = 3
# Names of files that killed runs leave behind among the checkpoints and in the workdir, and the age in seconds at which
# the next start removes them.
_LEFTOVERS = {"*.writing": 0, "*.removing": 0, "*.tmp": 3600, "*.damaged": 7 * 86400}
_LEFTOVERS_IN_WORKDIR = {"model.writing.keras": 0, "*.tmp": 3600, "tensorboard/*/*.tmp": 3600, ".tfdist-*": 3600}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    step: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]


@dataclasses.dataclass(slots=True)
class _Shared:
    """What the main thread and the writing thread share."""

    # The step being written, and the snapshot that waits for it.
    writing_step: int | None = None
    next: _Snapshot | None = None
    # The records of best.json to write after their checkpoints; the steps that are not written yet.
    pending_best: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    pending_steps: set[int] = dataclasses.field(default_factory=set)
    # Not yet reported: step, error (of its write or its removal), and whether it is the best and is tried again.
    results: list[tuple[int, Exception | None, bool]] = dataclasses.field(default_factory=list)


class AsyncCheckpointer:
    """Writes checkpoints in a thread, one at a time. Used on the chief; only the main thread calls its methods.

    Args:
        directory: the directory of the run's checkpoints.
        options: how many checkpoints to keep.
        warn: called with one line for each failed or skipped checkpoint.
        before: called in the thread when a checkpoint is written, before it gets its name. If it fails, so does the
            checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        options: config_lib.Checkpoint,
        warn: Callable[[str], None],
        before: Callable[[], None] = lambda: None,
    ):
        self._directory = directory
        self._options = options
        self._warn = warn
        self._before = before
        self._valid_steps: set[int] = set()
        # The last checkpoints in a row that could not be written because the workdir does not exist.
        self._missing = 0
        # Guards `_shared`.
        self._changed = threading.Condition()
        self._shared = _Shared()
        # The best checkpoint, if it could not be written: its record, and its values until they are on disk. Written
        # again after the next checkpoint.
        self._failed_best: tuple[dict[str, Any], _Snapshot | None] | None = None
        # The step of the best checkpoint, if `wait` has reported that it could not be written.
        self._reported_best: int | None = None
        # Whether a checkpoint that could not be removed was reported.
        self._removal_reported = False
        # The last snapshot, if it could not be written: `mark_best` may name it later.
        self._failed: _Snapshot | None = None
        # The step of the last `save`.
        self._newest_step: int | None = None
        # Duration of the slowest write, in seconds; None before the first.
        self.longest_write_seconds: float | None = None

    def remove_partial(self, restored: checkpoint_format.Saved | None) -> None:
        """Removes what a killed run left in its workdir, and records that `restored` is valid.

        No other run may write to the workdir. Incomplete checkpoints and those that are no longer kept are removed at
        once, files that other processes may be writing after an hour, and damaged checkpoints after a week.
        """
        for directory, leftovers in (
            (self._directory, _LEFTOVERS),
            (self._directory.parent, _LEFTOVERS_IN_WORKDIR),
        ):
            for pattern, age in leftovers.items():
                for path in directory.glob(pattern):
                    with contextlib.suppress(OSError):
                        if path.name != workdir_lock.LOCK and time.time() - path.lstat().st_ctime >= age:
                            _remove(path)
        if restored is not None:
            self._valid_steps.add(restored.step)
            with contextlib.suppress(OSError):
                self._remove_old(restored.step, restored.state)

    def save(self, step: int, snapshot: Callable[[], dict[str, np.ndarray]], state: dict[str, Any]) -> None:
        """Starts writing the checkpoint of `step`; first waits up to `_MAX_WAIT_SECONDS` for the previous one.

        Args:
            step: the step.
            snapshot: copies all values to host memory. Called after the wait, and not if `step` is saved already: at
                most one other copy is in memory then, and one of the best checkpoint if it could not be written.
            state: the state of the training loop, JSON values.

        Raises:
            FileNotFoundError: the workdir does not exist, and the previous checkpoints could not be written.
        """
        self._wait_until_idle(_MAX_WAIT_SECONDS)
        if self._missing >= _MAX_MISSING:
            raise FileNotFoundError(
                f"The workdir {self._directory.parent} no longer exists: {self._missing} checkpoints in a row could "
                f"not be written, so the run ends at step {step}. Restore or mount the directory, and run the same "
                "command to resume from its newest checkpoint."
            )
        self._newest_step = step
        if step in self._valid_steps | self._shared.pending_steps:
            return
        self._drop_next()
        with self._changed:
            self._failed = None
        copied = _Snapshot(step=step, arrays=snapshot(), state=state)
        with self._changed:
            self._shared.next = copied
            self._shared.pending_steps.add(step)
            if self._shared.writing_step is None:
                threading.Thread(target=self._writer_loop, name="checkpoint").start()
                self._shared.writing_step = step

    def _drop_next(self) -> None:
        """Skips the snapshot that waits for the previous one to be written, if there is one, and reports it."""
        with self._changed:
            dropped, self._shared.next = self._shared.next, None
            if dropped is None:
                return
            writing, step = self._shared.writing_step, dropped.step
            self._shared.pending_steps.discard(step)
            best = self._shared.pending_best.pop(step, None)
            self._failed_best = self._failed_best if best is None else (best, dropped)
        self._warn(
            f"WARNING: {self._directory} is slow: the checkpoint of step {writing} is still being written; "
            f"skipped the checkpoint of step {step}. Training continues."
        )

    def wait(self) -> bool:
        """Waits until all checkpoints are written. Returns False if the newest one failed; the cause was reported."""
        if not self._wait_until_idle(_MAX_WAIT_SECONDS):
            self._warn(f"WARNING: {self._directory} is slow: waiting for the checkpoint of step {self._newest_step}.")
            self._wait_until_idle(None)
        self._retry_best()
        self._report_results()
        saved = self._newest_step is None or self._newest_step in self._valid_steps
        failed = None if self._failed_best is None else self._failed_best[0]["step"]
        # Once, and not if it is the newest one: the caller reports that.
        if failed not in (None, self._reported_best) and (saved or failed != self._newest_step):
            self._reported_best = failed
            self._warn(f"WARNING: the best checkpoint, of step {failed}, could not be written to {self._directory}.")
        return saved

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Writes best.json for `step` once its checkpoint is written; called before or after its `save`.

        If either cannot be written, both are tried again after the next checkpoint.
        """
        best = {"step": step, "metric": metric, "value": value}
        with self._changed:
            written = step in self._valid_steps or (step, None, False) in self._shared.results
            if not written and self._failed is not None and self._failed.step == step:
                self._failed_best = (best, self._failed)
                return
            if not written:
                self._shared.pending_best[step] = best
                return
        self._write_best(best)
        self._report_results()

    def _wait_until_idle(self, seconds: float | None) -> bool:
        with self._changed:
            idle = self._changed.wait_for(lambda: self._shared.writing_step is None, seconds)
        self._report_results()
        return idle

    def _report_results(self) -> None:
        """Reports failed writes of the thread, and records the successful ones."""
        with self._changed:
            results, self._shared.results = self._shared.results, []
        for step, error, again in results:
            if error is None:
                self._missing = 0
                self._valid_steps.add(step)
            elif isinstance(error, _BestFileError):
                self._warn(
                    f"WARNING: {self._directory / directory_lib.BEST} could not be written: {error}. Training "
                    f"continues, and tries again after the next checkpoint to record step {step} as the best."
                )
            elif isinstance(error, _RemovalError):
                if not self._removal_reported:
                    self._warn(
                        f"WARNING: the checkpoint of step {step} is no longer kept, and could not be removed from "
                        f"{self._directory}: {error}. Such checkpoints fill the disk: remove them by hand. Training "
                        "continues; this is said once."
                    )
                self._removal_reported = True
            else:
                self._missing = 0 if self._directory.parent.exists() else self._missing + 1
                self._warn(
                    f"WARNING: the checkpoint of step {step} could not be written to {self._directory}: "
                    f"{export.reason(error)}. Training continues; the previous checkpoint is untouched."
                    + (" This best checkpoint is tried again after the next one." if again else "")
                )

    def _writer_loop(self) -> None:
        """Writes snapshots until none is left; the body of the thread."""
        while True:
            with self._changed:
                snapshot, self._shared.next = self._shared.next, None
                self._shared.writing_step = None if snapshot is None else snapshot.step
                if snapshot is None:
                    self._changed.notify_all()
                    return
            error: Exception | None = None
            started = time.monotonic()
            try:
                self._write(snapshot)
            except Exception as caught:  # Any error, such as MemoryError: the checkpoint must not count as written.
                error = caught
            self.longest_write_seconds = max(self.longest_write_seconds or 0.0, time.monotonic() - started)
            with self._changed:
                self._shared.pending_steps.discard(snapshot.step)
                best = self._shared.pending_best.pop(snapshot.step, None)
                self._shared.results.append((snapshot.step, error, error is not None and best is not None))
                self._failed = None if error is None else snapshot
                if error is not None and best is not None:
                    self._failed_best = (best, snapshot)
            if error is None:
                if best is None:
                    self._retry_best()
                else:
                    self._write_best(best)
                with contextlib.suppress(OSError):  # Retried after the next save.
                    self._remove_old(snapshot.step, snapshot.state)

    def _write(self, snapshot: _Snapshot) -> None:
        checkpoint_format.write(self._directory, snapshot.step, snapshot.arrays, snapshot.state, self._before)

    def _write_best(self, best: dict[str, Any]) -> None:
        error = None
        try:
            files.write_json(str(self._directory / directory_lib.BEST), best)
        except OSError as caught:
            error = _BestFileError(export.reason(caught))
        with self._changed:
            self._failed_best = None if error is None else (best, None)
            if error is not None:
                self._shared.results.append((best["step"], error, True))

    def _retry_best(self) -> None:
        """Tries again to write the best checkpoint, if it could not be written."""
        with self._changed:
            failed = self._failed_best
        if failed is None:
            return
        best, snapshot = failed
        if snapshot is not None:
            try:
                self._write(snapshot)
            except Exception:  # Reported at the first attempt, and by `wait`.
                return
            with self._changed:
                self._shared.results.append((snapshot.step, None, False))
        self._write_best(best)

    def _is_failed_best(self, step: int) -> bool:
        return self._failed_best is not None and self._failed_best[0]["step"] == step

    def _remove_old(self, newest: int, state: Mapping[str, Any]) -> None:
        """Removes the checkpoints before `newest`, whose state is given, that are no longer kept."""
        best = directory_lib.read_best(self._directory)
        steps = directory_lib.steps(self._directory)
        kept = [step for step in steps if step <= newest][: self._options.keep]
        for step in steps:
            # Keep the target of a rollback, however many checkpoints were saved since, and the best also if best.json
            # is damaged.
            needed = step in (*kept, state.get("regular"), state.get("best_step") or None)
            needed = needed or (best is not None and step == best["step"])
            needed = needed or self._is_failed_best(step)
            if step < newest and not needed:
                # Rename first: an interrupted removal must not look like a damaged checkpoint.
                path = directory_lib.step_path(self._directory, step)
                removing = path.with_name(path.name + ".removing")
                try:
                    os.replace(path, removing)
                    _remove(removing)
                except OSError as error:
                    with self._changed:
                        self._shared.results.append((step, _RemovalError(export.reason(error)), False))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


class _RemovalError(Exception):
    """A checkpoint that is no longer kept could not be removed."""


class _BestFileError(Exception):
    """best.json could not be written."""
