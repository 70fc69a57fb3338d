"""Memory and time of `config.train.shard_optimizer`: `python -m tests.benchmark.shard_optimizer`.

Trains a perceptron of 17 million weights with Adam on 1, 2 and 4 workers of this machine, without and with the field in
turn. The memory is that of the last worker, which writes no checkpoint, between the reports of the 5th and the last
step: its median and its maximum. The time of a step is the median over the same steps.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tfdist.launch import local_workers
from tfdist.tools import tables

CONFIG, FIRST = "tests/configs/large_mlp.py", 5
# Bytes of Adam's slots for all weights, and of its two counters.
_WIDTH, _DEPTH = 1024, 17
WHOLE = 8 * (65 * _WIDTH + (_DEPTH - 1) * (_WIDTH + 1) * _WIDTH + (_WIDTH + 1) * 10)


def main() -> None:
    """Runs the trainings in turn, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[tuple[int, bool], list[tuple[float, ...]]] = {}
    for _ in range(options.rounds):
        for workers in options.workers:
            for sharded in (False, True)[: 1 + (workers > 1)]:
                found.setdefault((workers, sharded), []).append(train(workers, sharded))
    rows = []
    for (workers, sharded), values in found.items():
        slots, resident, peak, step = (statistics.median(one) for one in zip(*values, strict=True))
        rows.append((workers, str(sharded).lower(), round(slots), round(resident), round(peak), round(step)))
    print(f"medians of {options.rounds}")
    print(tables.text(("workers", "shard_optimizer", "slots MB", "MiB", "most MiB", "ms a step"), rows))


def train(workers: int, sharded: bool) -> tuple[float, ...]:
    """Trains in new processes; returns MB of slots, MiB and most MiB of the last worker, and ms a step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "tfdist.main", f"--config={CONFIG}", f"--workdir={folder}"),
            f"--config.train.shard_optimizer={str(sharded).lower()}",
        ]
        reserved = local_workers.reserve_ports(workers)
        ports = [one.getsockname()[1] for one in reserved]
        environments = local_workers.environments(os.environ, ports, [()] * workers)
        processes = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for env in environments]
        samples: list[tuple[float, float]] = []
        while processes[-1].poll() is None:
            samples.append((time.time(), _resident(processes[-1].pid)))
            time.sleep(0.02)
        codes = [process.wait() for process in processes]
        for one in reserved:
            one.close()
        if any(codes):
            sys.exit(f"A training failed: {' '.join(command)}")
        return _measure(pathlib.Path(folder, "metrics.jsonl"), samples)


def _resident(process: int) -> float:
    """Returns the resident memory of a process in MiB; 0: it has ended."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def _measure(metrics: pathlib.Path, samples: list[tuple[float, float]]) -> tuple[float, ...]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [one for one in records if one["kind"] == "train"][FIRST - 1 :]
    memory = [value for at, value in samples if steps[0]["time"] <= at <= steps[-1]["time"]]
    notes = [one["text"] for one in records if "a replica holds" in one.get("text", "")]
    slots = float(notes[0].split("a replica holds ")[1].split()[0]) if notes else WHOLE / 1e6
    durations = [later["time"] - one["time"] for one, later in itertools.pairwise(steps)]
    return slots, statistics.median(memory), max(memory), 1e3 * statistics.median(durations)


if __name__ == "__main__":
    main()
