"""Memory and time of `config.train.recompute`: `python -m tests.benchmark.recompute`.

Trains residual blocks, which are layers with layers in them, with a large batch: with their activations kept, and with
them computed again. Each training is a process of its own. Prints the peak of the process's memory and the processor
time of a step. Two runs of other lengths give the time of a step: that of the start cancels.
"""

import os
import subprocess
import sys
import tempfile

from tfdist.tools import tables

STEPS = (2, 8)
WIDTH, DEPTH, BATCH = 512, 16, 720
ROUNDS = 3
_BLOCKS = {"target": "tests.support.lab:blocks", "num_classes": 10, "width": WIDTH, "depth": DEPTH}
_OF_BLOCKS = (f"--config.model={_BLOCKS}", f"--config.data.batch_size={BATCH}")
CASES = {
    f"{DEPTH} blocks {WIDTH} wide, {BATCH} examples": _OF_BLOCKS,
    "train.recompute=['block_*']": (*_OF_BLOCKS, "--config.train.recompute=['block_*']"),
}


def main() -> None:
    """Runs the trainings in turn, and prints the table."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, values in found.items():
            short, long = (train(CASES[name], steps) for steps in STEPS)
            values.append((long[0], (long[1] - short[1]) / (STEPS[1] - STEPS[0])))
    rows = []
    for name, values in found.items():
        memory, seconds = (sorted(one)[len(one) // 2] for one in zip(*values, strict=True))
        rows.append((name, round(memory), round(seconds, 2)))
    print(f"medians of {ROUNDS}")
    print(tables.text(("", "peak MiB", "CPU s a step"), rows))


def train(words: tuple[str, ...], steps: int) -> tuple[float, float]:
    """Trains in a new process; returns its peak of memory in MiB and its processor time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "tfdist.main", "--config=tests/configs/blocks.py", f"--workdir={folder}/run"),
            *(*words, f"--config.train.steps={steps}", "--config.data.evaluation_split=none"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"A training failed: {' '.join(command)}")
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
