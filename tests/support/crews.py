"""The workers of one training under repeated faults: started, read line by line, and restarted."""

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
from launching import REPOSITORY, worker_environment
from processes import children, command_line, environment, tasks

from tfdist.cluster import interruption

# Variable in the environment of every process of a crew, which also its children's children inherit.
MARK = "TFDIST_CHAOS_CREW"
# The first line of a start: from the supervisor, or from `Crew.keep_running`.
STARTS = r"tfdist\.launch: .*Restart \d+ of|chaos: started"
# Of the first lines of the chief's log: the steps of the run.
_TOTAL = r"\[0\] batch .* ([\d,]+) steps in "
# A report of an interval, with the epoch after it.
REPORT = r"\[0\] [\d:]{8} +epoch +([\d.]+)/"
# 1,437 examples in batches of 96, which up to 32 workers divide.
STEPS_PER_EPOCH = 14
# The network is wide enough that a kill can hit a save.
_FLAGS = (
    "--config.model={'target': 'tests.support.lab:Dropouts', 'num_classes': 10, 'rate': 0.3, 'width': 256}",
    *("--config.data.batch_size=96", "--config.data.evaluation_batch_size=96", "--config.objective.seconds=0.06"),
    "--config.report.every.steps=1",
)
_GOES_ON = (interruption.EXIT_STOPPED, interruption.EXIT_PEER_LOST)


class RunOverError(Exception):
    """The training ended before the fault."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Crew:
    """One training under the supervisor, restarted until it is finished or fails."""

    command: list[str]
    workdir: pathlib.Path
    workers: int
    mark: str
    # (time.monotonic(), text) of every line written.
    lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    line_read: threading.Condition = dataclasses.field(default_factory=threading.Condition)
    # The supervisor.
    process: subprocess.Popen | None = None
    # Called after all processes have ended, before the next start, which then follows in any case.
    between: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    # The exit code of the last start; None while it runs.
    code: int | None = None
    # True: no more starts.
    closed: bool = False

    def keep_running(self) -> None:
        """Starts the training, and restarts it until it is finished or fails."""
        while True:
            self.code = None
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            env = worker_environment(**{MARK: self.mark})
            self.process = subprocess.Popen(self.command, cwd=REPOSITORY, env=env, **pipes, text=True, errors="replace")
            self._note("chaos: started")
            for line in self.process.stdout:
                self._note(line.rstrip("\n"))
            code = self.process.wait()
            actions, self.between = self.between, []
            for action in actions:
                action()
            # After an action, a start that failed because of the fault is repeated.
            if self.closed or not (actions or code in _GOES_ON or code < 0):
                break
        with self.line_read:
            self.code = code
            self.line_read.notify_all()

    def _note(self, text: str) -> None:
        with self.line_read:
            self.lines.append((time.monotonic(), text))
            self.line_read.notify_all()

    def find(self, pattern: str, since: int, seconds: float) -> tuple[int, re.Match]:
        """Waits for a line from `since` on that matches; returns its number and the match.

        Raises:
            RunOverError: the training has ended without one.
            TimeoutError: there was none within `seconds`.
        """
        deadline = time.monotonic() + seconds
        number = since
        while True:
            with self.line_read:
                while number < len(self.lines):
                    if match := re.search(pattern, self.lines[number][1]):
                        return number, match
                    number += 1
                if self.code is not None:
                    raise RunOverError
                if not self.line_read.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no line matches {pattern!r} within {seconds:g} s")

    def steps_left(self) -> int:
        """Returns the number of steps after the newest report."""
        with self.line_read:
            newest = [
                next(filter(None, (re.search(pattern, text) for _, text in reversed(self.lines))), None)
                for pattern in (_TOTAL, REPORT)
            ]
        if None in newest:
            return 10**9
        total, report = newest
        return int(total[1].replace(",", "")) - round(float(report[1]) * STEPS_PER_EPOCH)

    def pid(self, rank: int) -> int:
        """Waits for the process of a worker; returns its id.

        Raises:
            RunOverError: the training has ended, or the worker does not start.
        """
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.code is None:
            ids = children(self.process.pid)
            if self.workers > 1:
                ids = [pid for task, pid in tasks(self.process.pid).items() if task == ("worker", rank)]
            if ids:
                return ids[0]
            time.sleep(0.02)
        raise RunOverError

    def left_over(self) -> list[str]:
        """Returns the command lines of the processes of this crew that have not ended."""
        return [command_line(pid) for pid in psutil.pids() if environment(pid).get(MARK) == self.mark]


@contextlib.contextmanager
def crew(workdir: pathlib.Path, workers: int, options: list[str]) -> Iterator[Crew]:
    """Trains on `workers` workers with the supervisor."""
    launch = ["-m", "tfdist.launch", f"--workers={workers}", "--max_restarts=1000", "--"]
    flags = ["--config=tests/configs/interrupted.py", f"--workdir={workdir}", *_FLAGS, *options]
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    found = Crew(command=[sys.executable, *launch, *flags], workdir=workdir, workers=workers, mark=mark)
    restarter = threading.Thread(target=found.keep_running, daemon=True)
    restarter.start()
    try:
        yield found
    finally:
        deadline = time.monotonic() + 20
        while restarter.is_alive() and time.monotonic() < deadline:
            found.closed = True
            if found.process is not None:
                found.process.kill()
            time.sleep(0.1)
