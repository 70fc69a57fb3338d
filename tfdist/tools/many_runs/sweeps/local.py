"""Runs several commands at a time on this machine, each on its share of the GPUs or of the processor's cores."""

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.devices import host_gpus
from tfdist.launch import local_workers, processes
from tfdist.tools.many_runs.sweeps import ends

# Seconds between two looks at the processes.
_POLL_SECONDS = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Cores of a run, where its number of runs at a time is not given.
_CORES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """What a run may use: GPUs, or cores of the processor."""

    env: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    cores: frozenset[int] = frozenset()

    @property
    def share(self) -> str:
        """What it is, in words: "2 GPU(s)"."""
        return f"{len(self.gpus)} GPU(s)" if self.gpus else f"{len(self.cores) or 'all'} core(s)"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One process: the name of its run, its directory and its command."""

    name: str
    workdir: Path
    command: Sequence[str]


def slots(count: int | None, *, on_cpu: bool) -> list[Slot]:
    """Divides this machine into `count` slots, by default one for each GPU, or for two cores; `on_cpu`: without GPUs.

    Raises ValueError if there are fewer GPUs, or cores.
    """
    gpus = () if on_cpu else host_gpus.assigned_gpus(os.environ)
    if gpus:
        shares = local_workers.divide_gpus(gpus, count or len(gpus), "--max-at-once")
        return [Slot(local_workers.environments(os.environ, [], [share])[0], share) for share in shares]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    count = count or max(1, len(cores) // _CORES)
    if cores and count > len(cores):
        raise ValueError(f"--max-at-once={count}, but this machine has {len(cores)} cores: choose at most as many.")
    edges = [index * len(cores) // count for index in range(count + 1)]
    env = local_workers.environments(os.environ, [], [()])[0]
    return [Slot(env, (), frozenset(cores[first:last])) for first, last in itertools.pairwise(edges)]


def run_jobs(
    jobs: Iterator[Job],
    free: Sequence[Slot],
    stop: Sequence[int],
    *,
    ended: Callable[[Job, int], None],
    directory: str,
) -> None:
    """Runs the jobs, each on a slot, until there is none left, or until a signal; no process is left.

    Args:
        jobs: asked for the next one when a slot is free.
        stop: the signals that this process has received, by `signals`; passed on to the runs.
        ended: called with a job and its exit code; negative: killed by this signal.
        directory: where the commands start.
    """
    waiting, running = list(free), {}
    left, passed_on = True, False
    try:
        while running or (left and not stop):
            while waiting and left and not stop:
                job = next(jobs, None)
                left = job is not None
                if job is not None:
                    slot = waiting.pop(0)
                    running[_start(job, slot, directory)] = (job, slot)
            time.sleep(_POLL_SECONDS)
            if stop.count(signal.SIGINT) > 1:
                _send(running, signal.SIGKILL)
            elif stop and not passed_on:
                passed_on = True
                _send(running, signal.SIGTERM)
            for process, (job, slot) in list(running.items()):
                if process.poll() is not None:
                    del running[process]
                    waiting.append(slot)
                    ended(job, process.returncode)
    finally:
        _send(running, signal.SIGKILL)
        for process in running:
            process.wait()


def _start(job: Job, slot: Slot, directory: str) -> subprocess.Popen:
    bound = processes.die_with_parent(os.getpid()) if sys.platform == "linux" else None

    def prepare() -> None:
        if bound is not None:
            bound()
        if slot.cores:
            os.sched_setaffinity(0, slot.cores)

    with (job.workdir / ends.LOG).open("ab") as log:
        return subprocess.Popen(
            job.command,
            cwd=directory,
            env=dict(slot.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Control-C reaches this process only, which passes it on once.
            preexec_fn=prepare,
        )


def _send(running: Mapping[subprocess.Popen, Any], number: int) -> None:
    for process in running:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Yields a list of the stop signals that this process receives in the block; a closed terminal is SIGTERM."""
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        received.append(signal.SIGTERM if number == signal.SIGHUP else number)

    with processes.handle(_SIGNALS, receive):
        yield received
