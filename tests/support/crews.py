"""The workers of one training under repeated faults: started, read line by line, and restarted."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
from launching import REPOSITORY, free_ports, worker_environment
from networks import address, set_cable, two_hosts
from processes import children, command_line, environment

from tfdist.cluster import interruption

# Variable in the environment of every process of a crew, which also its children's children inherit.
MARK = "TFDIST_CHAOS_CREW"
# The first line of a start: from the supervisor, or from `Crew.keep_running` without one.
STARTS = r"tfdist\.launch: .*Restart \d+ of|chaos: started"
# Of the first lines of the chief's log: the steps of the run.
_TOTAL = r"\[0\] batch .* ([\d,]+) steps in "
# A report of an interval, with the epoch after it.
REPORT = r"\[0\] [\d:]{8} +epoch +([\d.]+)/"
# 1,442 examples in batches of 96.
STEPS_PER_EPOCH = 15
_GOES_ON = (interruption.EXIT_STOPPED, interruption.EXIT_PEER_LOST)


class RunOverError(Exception):
    """The training ended before the fault."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Crew:
    """One training, restarted until it is finished or fails."""

    command: list[str]
    workdir: pathlib.Path
    workers: int
    # The command prefix that starts a worker on its host, and the worker's environment: one entry per worker, or a
    # single one with a supervisor.
    hosts: list[list[str]]
    environments: list[dict[str, str]]
    mark: str
    # (time.monotonic(), text) of every line written.
    lines: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    line_read: threading.Condition = dataclasses.field(default_factory=threading.Condition)
    processes: list[subprocess.Popen] = dataclasses.field(default_factory=list)
    # Called after all processes have ended, before the next start, which then follows in any case.
    between: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    # The exit codes of the last start; None while it runs.
    codes: list[int] | None = None
    # True: no more starts.
    closed: bool = False

    @property
    def data(self) -> pathlib.Path:
        """The file of the examples."""
        return self.workdir.with_name("data.npz")

    @property
    def cache(self) -> pathlib.Path:
        """The directory in which the examples are stored once more."""
        return self.workdir.with_name("cache")

    @property
    def corruption(self) -> pathlib.Path:
        """As long as there is this file, the state of replica 1 changes; see tests/configs/chaos.py."""
        return self.workdir.with_name("corrupt")

    @property
    def supervised(self) -> bool:
        return len(self.hosts) < self.workers

    def keep_running(self) -> None:
        """Starts the training, and restarts it until it is finished or fails."""
        while True:
            self.codes = None
            self._note("chaos: started")
            readers = [self._start(*start) for start in enumerate(zip(self.hosts, self.environments, strict=True))]
            codes = [process.wait() for process in self.processes]
            for reader in readers:
                reader.join(10)
            actions, self.between = self.between, []
            for action in actions:
                action()
            # After an action, a start that failed because of the fault is repeated.
            if self.closed or not (actions or any(code in _GOES_ON or code < 0 for code in codes)):
                break
        with self.line_read:
            self.codes = codes
            self.line_read.notify_all()

    def _start(self, rank: int, where: tuple[list[str], dict[str, str]]) -> threading.Thread:
        host, env = where
        process = subprocess.Popen(
            [*host, *self.command],
            cwd=REPOSITORY,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.processes[rank:] = [process]
        prefix = "" if self.supervised else f"[{rank}] "
        reader = threading.Thread(target=self._read, args=(process, prefix), daemon=True)
        reader.start()
        return reader

    def _read(self, process: subprocess.Popen, prefix: str) -> None:
        for line in process.stdout:
            self._note(prefix + line.rstrip("\n"))

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
                if self.codes is not None:
                    raise RunOverError
                if not self.line_read.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no line matches {pattern!r} within {seconds:g} s")

    def last_step(self) -> int:
        """Returns the newest step reported since the last start; 0: none."""
        with self.line_read:
            for _, text in reversed(self.lines):
                if match := re.search(REPORT, text):
                    return step_of(match)
                if re.search(STARTS, text):
                    break
        return 0

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
        return int(total[1].replace(",", "")) - step_of(report)

    def pid(self, rank: int) -> int:
        """Waits for the process of a worker; returns its id.

        Raises:
            RunOverError: the training has ended, or the worker does not start.
        """
        if not self.supervised:
            return self.processes[rank].pid
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.codes is None:
            for pid in children(self.processes[0].pid):
                if f'"index": {rank}}}' in environment(pid).get("TF_CONFIG", "") or self.workers == 1:
                    return pid
            time.sleep(0.02)
        raise RunOverError

    def left_over(self) -> list[str]:
        """Returns the command lines of the processes of this crew that have not ended."""
        return [command_line(pid) for pid in psutil.pids() if environment(pid).get(MARK) == self.mark]


def step_of(report: re.Match) -> int:
    """Returns the step of a line that matches `REPORT`."""
    return round(float(report[1]) * STEPS_PER_EPOCH)


@contextlib.contextmanager
def crew(workdir: pathlib.Path, workers: int, options: list[str], *, apart: bool = False) -> Iterator[Crew]:
    """Trains on `workers` workers with the supervisor; `apart`: without it, and alternately on two hosts."""
    flags = ["--config=tests/configs/chaos.py", f"--workdir={workdir}"]
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    with contextlib.ExitStack() as stack:
        if apart:
            networks = stack.enter_context(two_hosts())
            where = [rank % 2 for rank in range(workers)]
            addresses = [f"{address(host)}:{port}" for host, port in zip(where, free_ports(workers), strict=True)]
            tasks = [
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}} for rank in range(workers)
            ]
            hosts = [networks[host] for host in where]
            environments = [worker_environment(TF_CONFIG=json.dumps(task), **{MARK: mark}) for task in tasks]
            command = [sys.executable, "-m", "tfdist.main"]
        else:
            hosts, environments = [[]], [worker_environment(**{MARK: mark})]
            own = [f"--workers={workers}", "--max_restarts=1000"]
            command = [sys.executable, "-m", "tfdist.launch", *own, "--"]
        found = Crew(
            command=command, workdir=workdir, workers=workers, hosts=hosts, environments=environments, mark=mark
        )
        flags += [f"--config.data.source.path={found.data}", f"--config.data.cache_dir={found.cache}"]
        found.command += [*flags, f"--config.objective.corruption={found.corruption}", *options]
        write_data(found.data, 1442)
        restarter = threading.Thread(target=found.keep_running, daemon=True)
        restarter.start()
        try:
            yield found
        finally:
            deadline = time.monotonic() + 20
            while restarter.is_alive() and time.monotonic() < deadline:
                found.closed = True
                for process in found.processes:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGKILL)
                time.sleep(0.1)


def write_data(path: pathlib.Path, count: int) -> None:
    """Writes the digits: the first `count` for training, the last 355 for evaluation."""
    with np.load(os.path.join(REPOSITORY, "tfdist/zoo/data/digits.npz")) as digits:
        images, labels = digits["image"], digits["label"]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        image_train=images[:count],
        label_train=labels[:count],
        image_test=images[-355:],
        label_test=labels[-355:],
    )


def pull(crew: Crew) -> None:
    """Pulls the cable between the two hosts, until the next start."""
    crew.between.append(lambda: set_cable(crew.hosts[1], "up"))
    set_cable(crew.hosts[1], "down")
