"""Starts contestants, each in processes of its own, and lets them take turns. Imports no TensorFlow."""

import contextlib
import dataclasses
import json
import math
import os
import selectors
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.launch import local_workers, processes

# How a turn becomes as long as asked for: the last that was this share of it decides the number of steps.
_ENOUGH = 0.2
_MOST_STEPS = 1_000_000


@dataclasses.dataclass(slots=True, kw_only=True)
class Participant:
    """Its processes, one a worker, in rank order."""

    name: str
    workers: list[subprocess.Popen]
    logs: list[Path]
    # It does multiples of so many steps.
    stride: int = 1
    # Of each worker, resident memory in MB at its highest.
    peak_mb: float = 0.0

    def turn(self, case: str, steps: int) -> tuple[float, float]:
        """Lets all workers do so many steps; returns the seconds of the slowest, and the mean processor seconds.

        Raises:
            ValueError: a worker has failed; shows the end of what it said.
        """
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(json.dumps({"case": case, "steps": steps}) + "\n")
                worker.stdin.flush()
        answers = self.hear()
        self.peak_mb = max(self.peak_mb, *(answer["peak_mb"] for answer in answers))
        cpu = statistics.mean(answer["cpu_seconds"] for answer in answers)
        return max(answer["seconds"] for answer in answers), cpu

    def hear(self) -> list[dict[str, Any]]:
        """Waits for an answer of each worker.

        Raises:
            ValueError: a worker has failed; shows the end of what the first to end said, for others only miss it.
        """
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self.workers):
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.workers):
                for key, _ in selector.select():
                    # A worker says one line, and no more until it is asked again: none waits unseen in a buffer.
                    line = key.fileobj.readline()
                    if not line:
                        raise ValueError(f"{self.name}: worker {key.data} has failed:\n{self._end_of_log(key.data)}")
                    answers[key.data] = json.loads(line)
        return [answers[rank] for rank in range(len(self.workers))]

    def _end_of_log(self, rank: int) -> str:
        return "\n".join(f"  {text}" for text in self.logs[rank].read_text(errors="replace").splitlines()[-15:])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the turns of one contestant came to."""

    # Milliseconds a step: the median over turns and the best turn, and the processor's, of one worker.
    milliseconds: float
    best_milliseconds: float
    cpu_milliseconds: float | None = None
    steps: int | None = None
    peak_mb: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where workers run: words before each one's command, and its host."""

    prefixes: Sequence[Sequence[str]] = ()
    hosts: Sequence[str] = ()


@contextlib.contextmanager
def open_bench(
    jobs: Mapping[str, dict[str, Any]], folder: Path, *, pin: bool, place: Bench | None = None
) -> Iterator[list[Participant]]:
    """Starts a contestant for each job, by name, and waits until it is ready; at the end of the block none is left.

    Raises:
        ValueError: `pin`, and a contestant has more workers than there are processors; or a worker has failed.
    """
    contestants: list[Participant] = []
    try:
        for name, job in jobs.items():
            contestants.append(_start(name, job, folder, pin, place or Bench()))
            contestants[-1].hear()
        yield contestants
    finally:
        for worker in [worker for contestant in contestants for worker in contestant.workers]:
            worker.kill()
            worker.communicate()


def take_turns(contestants: Sequence[Participant], case: str, *, seconds: float, rounds: int) -> dict[str, Result]:
    """Lets the contestants take turns of about `seconds`, `rounds` times, so that what else the machine does hits all.

    Before the first round each finds out how many steps that is, which also compiles and warms up.
    """
    steps = {contestant.name: _calibrate(contestant, case, seconds) for contestant in contestants}
    turns: dict[str, list[tuple[float, float]]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            turns[contestant.name].append(contestant.turn(case, steps[contestant.name]))
    results = {}
    for contestant in contestants:
        clock, cpu = zip(*turns[contestant.name], strict=True)
        scale = 1000.0 / steps[contestant.name]
        results[contestant.name] = Result(
            milliseconds=statistics.median(clock) * scale,
            best_milliseconds=min(clock) * scale,
            cpu_milliseconds=statistics.median(cpu) * scale,
            steps=steps[contestant.name] * rounds,
            peak_mb=contestant.peak_mb,
        )
    return results


def _calibrate(contestant: Participant, case: str, seconds: float) -> int:
    stride = steps = contestant.stride
    contestant.turn(case, stride)
    contestant.turn(case, stride)
    while True:
        taken, _ = contestant.turn(case, steps)
        if taken >= _ENOUGH * seconds or steps >= _MOST_STEPS:
            return max(1, round(steps * seconds / taken / stride)) * stride
        strides = math.ceil(steps / stride * min(10.0, 1.5 * _ENOUGH * seconds / taken))
        steps = min(_MOST_STEPS, strides * stride)


def processors(count: int) -> list[int]:
    """A processor for each of `count` workers.

    Raises:
        ValueError: this process may use fewer.
    """
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise ValueError(
            f"{count} workers, each pinned to a processor of its own, and there are {len(cores)} processor(s): measure "
            "fewer workers, or let them share with --nopin."
        )
    return cores[:count]


def _start(name: str, job: dict[str, Any], folder: Path, pin: bool, place: Bench) -> Participant:
    count = job["processes"]
    reserved = local_workers.reserve_ports(count)
    ports = [sock.getsockname()[1] for sock in reserved]
    # Without GPUs: all contestants would share them.
    environments = local_workers.environments(
        dict(os.environ) | job["environment"], ports, [("",)] * count, place.hosts
    )
    cores = processors(count) if pin else [None] * count
    logs = [folder / f"{name.replace(' ', '_')}-{rank}.log" for rank in range(count)]
    workers = []
    for rank in range(count):
        told = job | {"core": cores[rank], "folder": str(folder)}
        command = [*(place.prefixes[rank] if place.prefixes else ()), sys.executable]
        with logs[rank].open("w") as log:
            workers.append(
                subprocess.Popen(
                    [*command, "-m", "tfdist.tools.benchmark.worker", json.dumps(told)],
                    # It will be killed, and what TensorFlow writes there shall go with the folder.
                    env={"TF_CPP_MIN_LOG_LEVEL": "2", **environments[rank], "TMPDIR": str(folder)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    preexec_fn=processes.die_with_parent(os.getpid()),
                )
            )
    for sock in reserved:
        sock.close()
    return Participant(name=name, workers=workers, logs=logs, stride=job.get("stride", 1))
