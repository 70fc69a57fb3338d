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
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import workdir_lock
from tfdist.report import files

# The longest wait of `save` for the previous checkpoint. After that, it skips the new one.
_MAX_WAIT_SECONDS = 30.0
# Checkpoints in a row that found no workdir, after which the run ends.
_MAX_MISSING = 3
# Of `files.replace_file`: NAME.PID-TOKEN.tmp.
_TEMPORARY = f"*.[0-9]*-{'[0-9a-f]' * 8}.tmp"
# Names of what killed runs leave behind among the checkpoints, and of files in the workdir, which may have others of
# the user's; and the age in seconds at which the next start removes them.
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
        warn: called with one line for each failed or skipped checkpoint.
        before: called in the thread when a checkpoint is written, before it gets its name. If it fails, so does the
            checkpoint.
        stays: (step) -> whether its checkpoint is never removed.
    """

    def __init__(
        self,
        directory: Path,
        options: config_lib.Checkpoint,
        warn: Callable[[str], None],
        before: Callable[[], None] = lambda: None,
        stays: Callable[[int], bool] = lambda step: False,
    ):
        self._directory, self._warn, self._before = directory, warn, before
        # (steps, newest first) -> those that are kept.
        self._kept = lambda steps: {*steps[: options.keep], *filter(stays, steps)}
        # The step of the last `save`.
        self._newest_step: int | None = None
        # Duration of the slowest write, in seconds; None before the first.
        self.longest_write_seconds: float | None = None
        # Guards what follows, which the thread uses as well.
        self._changed = threading.Condition()
        # The step being written, and the snapshot that waits for it.
        self._writing_step: int | None = None
        self._next: _Snapshot | None = None
        # The steps that are on disk, and the last checkpoints in a row that found no workdir.
        self._valid_steps: set[int] = set()
        self._missing = 0
        # The last snapshot that could not be written: `mark_best` may name it later.
        self._failed: _Snapshot | None = None
        # What best.json does not hold yet, and the values of its step if they could not be written.
        self._best: dict[str, Any] | None = None
        self._best_snapshot: _Snapshot | None = None
        # Warnings of the thread for the main thread, and what is said once.
        self._texts: list[str] = []
        self._said: set[str] = set()

    def remove_partial(self, restored: checkpoint_format.Saved | None) -> None:
        """Removes what a killed run left in its workdir, and records that `restored` is valid.

        No other run may write to the workdir. Incomplete checkpoints and those that are no longer kept are removed at
        once, files that other processes may be writing after an hour, and damaged checkpoints after a week.
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
            self._remove_old(restored.step, restored.state)

    def save(self, step: int, snapshot: Callable[[], dict[str, np.ndarray]], state: dict[str, Any]) -> None:
        """Starts writing the checkpoint of `step`; first waits up to `_MAX_WAIT_SECONDS` for the previous one.

        Args:
            snapshot: copies all values to host memory. Called after the wait, and not if `step` is saved already: at
                most one other copy is in memory then, and one of the best checkpoint if it could not be written.
            state: the state of the training loop, JSON values.

        Raises:
            FileNotFoundError: the workdir does not exist, and the previous checkpoints could not be written.
        """
        self.wait_until_idle(_MAX_WAIT_SECONDS)
        if self._missing >= _MAX_MISSING:
            raise FileNotFoundError(
                f"The workdir {self._directory.parent} no longer exists: {self._missing} checkpoints in a row could "
                f"not be written, so the run ends at step {step}. Restore or mount the directory, and run the same "
                "command to resume from its newest checkpoint."
            )
        self._newest_step = step
        with self._changed:
            if step in self._valid_steps or step in (self._writing_step, self._next and self._next.step):
                return
            dropped, self._next, self._failed = self._next, None, None
            if dropped is not None and self._is_best(dropped.step):
                self._best_snapshot = dropped
        if dropped is not None:
            self._warn(
                f"WARNING: {self._directory} is slow: the checkpoint of step {self._writing_step} is still being "
                f"written; skipped the checkpoint of step {dropped.step}. Training continues."
            )
        del dropped
        copied = _Snapshot(step=step, arrays=snapshot(), state=state)
        with self._changed:
            self._next = copied
            if self._writing_step is None:
                try:
                    threading.Thread(target=self._write_all, name="checkpoint").start()
                    self._writing_step = step
                except RuntimeError as error:  # The limits of the job allow no more threads.
                    self._next = None
                    self._say_unwritten(step, str(error))

    def wait(self) -> bool:
        """Waits until all checkpoints are written. Returns False if the newest one failed; the cause was reported."""
        with files.waiting(self._directory):
            if not self.wait_until_idle(_MAX_WAIT_SECONDS):
                text = f"{self._directory} is slow: waiting for the checkpoint of step {self._newest_step}."
                self._warn(f"WARNING: {text}")
                self.wait_until_idle(None)
        self._write_best()
        saved = self._newest_step is None or self._newest_step in self._valid_steps
        tried = self._best is not None and (self._best_snapshot is not None or self._best["step"] in self._valid_steps)
        if tried and (saved or not self._is_best(self._newest_step)):  # The caller reports the newest one.
            step = self._best["step"]
            self._say(
                f"the best checkpoint, of step {step}, could not be written to {self._directory}.", f"best {step}"
            )
        self._report()
        return saved

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Writes best.json for `step` when its checkpoint is on disk; called before or after its `save`.

        If either cannot be written, both are tried again after the next checkpoint.
        """
        with self._changed:
            self._best = {"step": step, "metric": metric, "value": value}
            self._best_snapshot = self._failed if self._failed is not None and self._failed.step == step else None
            idle = self._writing_step is None
        if idle and step in self._valid_steps:
            self._write_best()
            self._report()

    def _is_best(self, step: int | None) -> bool:
        return self._best is not None and self._best["step"] == step

    def wait_until_idle(self, seconds: float | None) -> bool:
        """Waits so long for what is being written; returns whether nothing is any more. None: no limit."""
        with self._changed:
            idle = self._changed.wait_for(lambda: self._writing_step is None, seconds)
        self._report()
        return idle

    def _say(self, text: str, once: str = "") -> None:
        """Adds a warning; only the first one with the same `once`, unless that is empty."""
        with self._changed:
            if once not in self._said:
                self._texts.append(f"WARNING: {text}")
            self._said |= {once} - {""}

    def _report(self) -> None:
        with self._changed:
            texts, self._texts = self._texts, []
        for text in texts:
            self._warn(text)

    def _write_all(self) -> None:
        """The body of the thread. However it ends, nothing waits for it any more."""
        try:
            self._write_each()
        except BaseException as error:  # Such as MemoryError: what is written is complete.
            with self._changed:
                self._say(f"after a save to {self._directory}: {type(error).__name__}: {error}. Training continues.")
                self._writing_step = self._next = None
                self._changed.notify_all()

    def _write_each(self) -> None:
        """Writes snapshots until none is left."""
        while True:
            with self._changed:
                snapshot, self._next = self._next, None
                self._writing_step = None if snapshot is None else snapshot.step
                if snapshot is None:
                    self._changed.notify_all()
                    return
            started = time.monotonic()
            error = self._write(snapshot)
            self.longest_write_seconds = max(self.longest_write_seconds or 0.0, time.monotonic() - started)
            if error is None:
                self._missing = 0
                self._write_best()
                self._remove_old(snapshot.step, snapshot.state)
                continue
            with self._changed:
                self._failed, again = snapshot, self._is_best(snapshot.step)
                self._best_snapshot = snapshot if again else self._best_snapshot
            self._missing = self._missing + 1 if _is_gone(self._directory.parent) else 0
            more = " This best checkpoint is tried again after the next one." if again else ""
            self._say_unwritten(snapshot.step, files.describe_error(error), more)

    def _say_unwritten(self, step: int, why: str, more: str = "") -> None:
        text = f"the checkpoint of step {step} could not be written to {self._directory}: {why}. Training continues; "
        self._say(f"{text}the previous checkpoint is untouched.{more}")

    def _write(self, snapshot: _Snapshot) -> Exception | None:
        """Writes a checkpoint, and returns the error if it fails."""
        try:
            checkpoint_format.write(self._directory, snapshot.step, snapshot.arrays, snapshot.state, self._before)
        except Exception as error:  # Any error, such as MemoryError: the checkpoint must not count as written.
            return error
        with self._changed:
            self._valid_steps.add(snapshot.step)
        return None

    def _write_best(self) -> None:
        """Writes best.json if its checkpoint is on disk, or can be written now."""
        with self._changed:
            best, snapshot = self._best, self._best_snapshot
        if best is None or (snapshot is not None and self._write(snapshot)) or best["step"] not in self._valid_steps:
            return
        try:
            files.write_json(str(self._directory / directory_lib.BEST), best)
        except OSError as error:
            self._say(
                f"{self._directory / directory_lib.BEST} could not be written: {files.describe_error(error)}. Training "
                f"continues, and tries again after the next checkpoint to record step {best['step']} as the best."
            )
            return
        with self._changed:
            if self._best is best:
                self._best = self._best_snapshot = None

    def _remove_old(self, newest: int, state: Mapping[str, Any]) -> None:
        """Removes the checkpoints before `newest`, whose state is given, that are no longer kept."""
        try:
            steps = directory_lib.steps(self._directory)
            best = directory_lib.read_best(self._directory)
        except OSError:  # Tried again after the next save.
            return
        # Keep the target of a rollback, however many checkpoints were saved since, and the best also if best.json is
        # damaged or not written yet.
        kept = {step for step in steps if step > newest}
        kept |= {state.get("regular"), state.get("best_step") or None, best and best["step"]}
        kept |= self._kept([step for step in steps if step <= newest])
        for step in steps:
            if step in kept or self._is_best(step):
                continue
            # Rename first: an interrupted removal must not look like a damaged checkpoint.
            path = directory_lib.step_path(self._directory, step)
            removing = path.with_name(path.name + ".removing")
            try:
                os.replace(path, removing)
                _remove(removing)
            except OSError as error:
                self._say(
                    f"the checkpoint of step {step} is no longer kept, and could not be removed from "
                    f"{self._directory}: {files.describe_error(error)}. Such checkpoints fill the disk: remove them by "
                    "hand. Training continues; this is said once.",
                    "removal",
                )


def _is_gone(path: Path) -> bool:
    """Returns whether there is no such directory; False if its file system does not say."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
