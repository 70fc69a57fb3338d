"""Starts the participants of a comparison, each in its own processes, and measures them in turn. No TensorFlow."""

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

# The number of steps of a turn is computed from a trial that took at least this fraction of a turn.
_TRIAL_FRACTION = 0.2
_MAX_STEPS = 1_000_000


@dataclasses.dataclass(slots=True, kw_only=True)
class Participant:
    """One thing that is measured: its worker processes in rank order, and their logs."""

    name: str
    workers: list[subprocess.Popen]
    logs: list[Path]
    # Numbers of steps are multiples of this.
    stride: int = 1
    # Highest resident memory of any worker, in MB.
    peak_mb: float = 0.0

    def turn(self, case: str, steps: int) -> tuple[float, float]:
        """Runs `steps` steps on all workers; returns the seconds of the slowest worker and the mean CPU seconds.

        Raises:
            ValueError: a worker failed; contains the end of its log.
        """
        self.request(case, steps)
        answers = self.receive()
        self.peak_mb = max(self.peak_mb, *(answer["peak_mb"] for answer in answers))
        cpu = statistics.mean(answer["cpu_seconds"] for answer in answers)
        return max(answer["seconds"] for answer in answers), cpu

    def request(self, case: str, steps: int) -> None:
        """Asks all workers to run `steps` steps; `receive` waits for their answers."""
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(json.dumps({"case": case, "steps": steps}) + "\n")
                worker.stdin.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Waits for one answer of each worker; returns them in rank order.

        Raises:
            ValueError: a worker failed; contains the end of the log of the first one to exit, which is the cause.
        """
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self.workers):
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.workers):
                for key, _ in selector.select():
                    # A worker writes one line for each request, so no second line stays in the buffer.
                    line = key.fileobj.readline()
                    if not line:
                        raise ValueError(f"{self.name}: worker {key.data} failed:\n{self._end_of_log(key.data)}")
                    answers[key.data] = json.loads(line)
        return [answers[rank] for rank in range(len(self.workers))]

    def _end_of_log(self, rank: int) -> str:
        return "\n".join(f"  {text}" for text in self.logs[rank].read_text(errors="replace").splitlines()[-15:])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The measurements of one participant."""

    # Milliseconds of a step: median over the turns, and median CPU time of one worker.
    milliseconds: float
    cpu_milliseconds: float | None = None
    steps: int | None = None
    peak_mb: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of the workers: the name of each, and the prefix of its command."""

    prefixes: Sequence[Sequence[str]] = ()
    names: Sequence[str] = ()


@contextlib.contextmanager
def start(
    jobs: Mapping[str, dict[str, Any]], folder: Path, *, pin: bool, hosts: Hosts | None = None
) -> Iterator[list[Participant]]:
    """Starts a participant for each job, waits until all are ready, and kills their processes at the end of the block.

    Args:
        jobs: name of the participant -> its job, see `cases`.
        folder: for data and logs.
        pin: pin each worker to its own CPU core.
        hosts: where the workers run; None: on localhost.

    Raises:
        ValueError: with `pin`, there are fewer CPU cores than workers; or a worker failed.
    """
    participants: list[Participant] = []
    try:
        for name, job in jobs.items():
            participants.append(_start(name, job, folder, pin, hosts or Hosts()))
            if pin:
                participants[-1].receive()
        for participant in [] if pin else participants:  # They start side by side.
            participant.receive()
        yield participants
    finally:
        for worker in [worker for participant in participants for worker in participant.workers]:
            worker.kill()
            worker.communicate()


def take_turns(participants: Sequence[Participant], case: str, *, seconds: float, rounds: int) -> dict[str, Result]:
    """Measures the participants in turns of about `seconds`, `rounds` times: other load then affects all of them.

    Before the first round, each one runs trials to find the number of steps of a turn, which also compiles and warms
    up.
    """
    steps = {participant.name: _calibrate(participant, case, seconds) for participant in participants}
    turns: dict[str, list[tuple[float, float]]] = {participant.name: [] for participant in participants}
    for number in range(rounds):
        for participant in participants if number % 2 == 0 else reversed(participants):
            turns[participant.name].append(participant.turn(case, steps[participant.name]))
    results = {}
    for participant in participants:
        clock, cpu = zip(*turns[participant.name], strict=True)
        scale = 1000.0 / steps[participant.name]
        results[participant.name] = Result(
            milliseconds=statistics.median(clock) * scale,
            cpu_milliseconds=statistics.median(cpu) * scale,
            steps=steps[participant.name] * rounds,
            peak_mb=participant.peak_mb,
        )
    return results


def _calibrate(participant: Participant, case: str, seconds: float) -> int:
    stride = steps = participant.stride
    participant.turn(case, stride)
    participant.turn(case, stride)
    while True:
        taken, _ = participant.turn(case, steps)
        if taken >= _TRIAL_FRACTION * seconds or steps >= _MAX_STEPS:
            return max(1, round(steps * seconds / taken / stride)) * stride
        strides = math.ceil(steps / stride * min(10.0, 1.5 * _TRIAL_FRACTION * seconds / taken))
        steps = min(_MAX_STEPS, strides * stride)


def choose_cores(count: int) -> list[int]:
    """Returns a CPU core for each of `count` workers.

    Raises:
        ValueError: this process may use fewer.
    """
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise ValueError(
            f"{count} workers need a CPU core each, and there are {len(cores)} core(s): measure fewer workers, or let "
            "them share cores with --nopin."
        )
    return cores[:count]


def _start(name: str, job: dict[str, Any], folder: Path, pin: bool, hosts: Hosts) -> Participant:
    count = job["processes"]
    reserved = local_workers.reserve_ports(count)
    names = hosts.names or ["localhost"] * count
    addresses = [f"{name}:{sock.getsockname()[1]}" for name, sock in zip(names, reserved, strict=False)]
    # All participants share the GPUs, so only a benchmark of GPUs shows them.
    gpus = [(str(rank),) if job.get("gpus") else ("",) for rank in range(count)]
    environments = local_workers.environments(dict(os.environ) | job["environment"], addresses, gpus)
    cores = choose_cores(count) if pin else [None] * count
    logs = [folder / f"{name.replace(' ', '_')}-{rank}.log" for rank in range(count)]
    workers = []
    for rank in range(count):
        settings = json.dumps(job | {"core": cores[rank], "folder": str(folder)})
        prefix = hosts.prefixes[rank] if hosts.prefixes else ()
        with logs[rank].open("w") as log:
            workers.append(
                subprocess.Popen(
                    [*prefix, sys.executable, "-m", "tests.benchmark.worker", settings],
                    # It is killed at the end; TensorFlow's temporary files are removed with the folder.
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
