"""Runs `tfdist burnin` with many local tasks: `python -m tests.benchmark.burnin_faults --tasks=60`.

First with planted faults, --faulty of each kind: a bit of a trained weight flipped in one round, NaN in one round, a
link that sends slowly, arithmetic at half the speed. Then without, for --clean rounds, or --minutes if these end first.
Each task is a process on a node of its own name. The tasks share the processors of this machine, so rates are measured
by processor time, and at most --at_once tasks make a round at the same time. The processes are forked from one that
has imported TensorFlow, and so share its memory. The command prints what rank 0 did, the largest sum of their memory
(proportional set size), and exits with 1 if a fault is not named or a clean node is.
"""

import argparse
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

import psutil

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import forked  # noqa: E402
import processes  # noqa: E402
from launching import worker_environment  # noqa: E402

KINDS = ("bit", "nan", "link", "slow")
SCRIPT = ROOT / "tests" / "support" / "burnin_task.py"


def run(
    folder: pathlib.Path, faults: dict[int, str], tasks: int, rounds: int, flags: argparse.Namespace
) -> tuple[int, str, float, float]:
    """Returns the exit code and the output of rank 0, the largest memory of all tasks in GB, and the seconds."""
    last = [str(flags.at_once), str(flags.minutes)]
    arguments = [
        [str(folder), str(rank), str(tasks), faults.get(rank, "none"), str(rounds), *last] for rank in range(tasks)
    ]
    commands = [[sys.executable, str(SCRIPT), *one] for one in arguments]
    env, began = worker_environment(PYTHONPATH=str(ROOT)), time.monotonic()
    with processes.started(commands, [env] * tasks) as started:
        largest, ended = [0.0], threading.Event()

        def watch() -> None:
            while not ended.wait(10.0):
                largest[0] = max(largest[0], sum(map(memory, [one.pid for one in started])))

        threading.Thread(target=watch, daemon=True).start()
        outputs = [one.communicate()[0].decode() for one in started]
        ended.set()
        codes = [one.returncode for one in started]
    assert codes[1:] == [0] * (tasks - 1), outputs
    return codes[0], outputs[0], largest[0], time.monotonic() - began


def memory(pid: int) -> float:
    """Returns the proportional set size of a process in GB; 0 if it has ended."""
    try:
        return psutil.Process(pid).memory_full_info().pss / 1e9
    except psutil.Error:
        return 0.0


def main() -> int:
    """Runs both and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, count in (
        ("tasks", 60),
        ("faulty", 3),
        ("rounds", 10),
        ("clean", 200),
        ("seed", 0),
        ("at_once", 8),
        ("minutes", 60),
    ):
        parser.add_argument(f"--{name}", default=count, type=int)
    flags = parser.parse_args()
    ranks = random.Random(flags.seed).sample(range(1, flags.tasks), flags.faulty * len(KINDS))
    faults = {rank: KINDS[index % len(KINDS)] for index, rank in enumerate(ranks)}
    wrong = False
    for title, planted, rounds in (("planted faults", faults, flags.rounds), ("clean", {}, flags.clean)):
        if not rounds:
            continue
        with tempfile.TemporaryDirectory() as folder:
            code, text, gigabytes, seconds = run(pathlib.Path(folder), planted, flags.tasks, rounds, flags)
        named = set(re.findall(r"n\d+", "".join(re.findall(r"--exclude=(\S+)", text))))
        expected = {f"n{rank}" for rank in planted}
        wrong = wrong or named != expected or code != bool(planted)
        print(text)
        print(f"{title}: {flags.tasks} tasks, {rounds} rounds, {seconds:.0f} s, {gigabytes:.1f} GB")
        print(
            f"  planted {len(expected)}, named {len(named & expected)}, named without a fault {len(named - expected)}"
        )
        print(f"  not named: {sorted(expected - named)}; {sorted(planted.items())}", flush=True)
    forked.end_servers()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
