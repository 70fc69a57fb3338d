"""Injects faults into trainings at random times, and compares them with an undisturbed training.

`python -m tests.support.chaos --minutes=10`. Each training has a few hundred steps and is started by `tfdist.launch`.
Faults of the disk need root, and are left out otherwise. It prints a table at the end, and exits with code 1 if
anything was wrong: weights or evaluations that differ by a bit, a process left over, more than 60 s from a fault to the
next step (on a machine that does nothing else; see --limit).
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # Where pytest finds these.
import crews
import faults
import topologies

from tfdist.tools import tables

# The most faults of one training.
_PER_RUN = 8


def main() -> int:
    """Runs trainings with the faults of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the run")
    parser.add_argument("--faults", type=int, default=10**9, help="how many faults are enough")
    parser.add_argument("--workers", default="2..4", help="how many workers: 3, or 2..4 for a random number")
    parser.add_argument("--seed", type=int, default=None, help="decides what happens, though not to the millisecond")
    parser.add_argument("--limit", type=float, default=60.0, help="longest time from a fault to the next step, in s")
    parser.add_argument("--steps", type=int, default=240, help="the length of each training")
    parser.add_argument("--kinds", default="", help="the faults to choose from, separated by commas; all without it")
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=None, help="directory of the trainings; those that fail remain"
    )
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    outcomes: list[faults.Outcome] = []
    problems: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # Even if the shell has set them to be ignored.
        signal.signal(number, signal.default_int_handler)
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        if options.workdir is None:
            parent = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        else:
            options.workdir.mkdir(parents=True, exist_ok=True)
            parent = pathlib.Path(tempfile.mkdtemp(prefix="chaos-", dir=options.workdir))
        run_trainings(options, random.Random(seed), parent, outcomes, problems)
    print(table(outcomes))
    for problem in problems:
        print(f"VIOLATION: {problem}")
    print(f"{len(outcomes)} faults, {len(problems)} violations, seed {seed}")
    return 1 if problems or not outcomes else 0


def run_trainings(
    options: argparse.Namespace,
    rng: random.Random,
    parent: pathlib.Path,
    outcomes: list[faults.Outcome],
    problems: list[str],
) -> None:
    """Runs training after training with faults; appends to `outcomes` and `problems`."""
    deadline = time.monotonic() + 60 * options.minutes
    least, _, most = options.workers.partition("..")
    lengths = [f"--config.train.steps={options.steps}", "--config.cluster.connect_seconds=600"]
    references: dict[int, pathlib.Path] = {}
    deck: list[str] = []
    for number in range(1, 10**6):
        if time.monotonic() > deadline or len(outcomes) >= options.faults:
            return
        # Fewer workers more often: they start sooner.
        workers = min(rng.randint(int(least), int(most or least)) for _ in range(2))
        if workers not in references:
            references[workers] = parent / f"undisturbed-{workers}"
            undisturbed(references[workers], workers, lengths)
        plan = choose(options, rng, deck, min(_PER_RUN, options.faults - len(outcomes)))
        with disk(parent / f"run-{number}") as directory:
            workdir = directory / "training"
            found, wrong, log = hit(workdir, workers, lengths, plan, rng, options.limit)
            outcomes += found
            wrong += [f"{o.kind} ({o.phase}): {o.violation}" for o in found if o.violation]
            full = any(outcome.kind in faults.OF_THE_DISK for outcome in found)
            wrong += differences(references[workers], workdir, may_miss=full)
            problems += [f"run {number}: {problem}" for problem in wrong]
            if wrong:
                shutil.copytree(directory, parent / f"failed-{number}")
                (parent / f"failed-{number}" / "log.txt").write_text(log)
        print(
            f"run {number}: {workers} workers, {len(found)} faults, {len(outcomes)} in all",
            *wrong,
            sep="\n  ",
            flush=True,
        )


def undisturbed(workdir: pathlib.Path, workers: int, lengths: list[str]) -> None:
    """Trains on `workers` workers, undisturbed and at full speed."""
    with crews.crew(workdir, workers, [*lengths, "--config.objective.seconds=0.0"]) as crew:
        if problems := _await_end(crew):
            said = "\n".join(text for _, text in crew.lines)
            sys.exit(f"{said}\nThe undisturbed training on {workers} workers failed: {problems}")


def choose(options: argparse.Namespace, rng: random.Random, deck: list[str], most: int) -> list[tuple[str, str]]:
    """Chooses the faults of one training and their phases."""
    names = [name for name in faults.KINDS if name in options.kinds.split(",") or not options.kinds]
    if os.geteuid() != 0:
        names = [name for name in names if name not in faults.OF_THE_DISK]
    while len(deck) < most:  # All kinds in a random order, then all in another one.
        deck += rng.sample(names, len(names))
    picked, deck[:] = deck[:most], deck[most:]
    plan = []
    for index, name in enumerate(picked):
        phases = [p for p in faults.KINDS[name].phases if p != "end" or index + 1 == len(picked)]
        plan.append((name, rng.choice(phases)))
    return plan


@contextlib.contextmanager
def disk(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Mounts a small disk for a training, or makes a directory if this process must not; removes it afterwards."""
    path.mkdir(parents=True)
    mounted = os.geteuid() == 0
    if mounted:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        shutil.rmtree(path)


def hit(
    workdir: pathlib.Path,
    workers: int,
    lengths: list[str],
    plan: list[tuple[str, str]],
    rng: random.Random,
    limit: float,
) -> tuple[list[faults.Outcome], list[str], str]:
    """Trains once with the faults of `plan`; returns their outcomes, other problems, and the log."""
    found: list[faults.Outcome] = []
    with crews.crew(workdir, workers, lengths) as crew:
        try:
            since = 0
            for name, phase in plan:
                if phase == "start" and found:  # Restart, so that there is a start to disturb.
                    since = len(crew.lines)
                    os.kill(crew.pid(rng.randrange(workers)), signal.SIGKILL)
                    found.append(faults.Outcome(kind="kill -9", phase="training, followed by the next"))
                found.append(faults.inflict(crew, name, phase, rng, since, limit))
                print(f"  {found[-1]}", flush=True)
                since = max(i for i, (_, text) in enumerate(crew.lines) if re.search(crews.STARTS, text))
        except (faults.RunOverError, ProcessLookupError):
            pass  # It ended before all faults of the plan.
        problems = _await_end(crew)
        log = "\n".join(f"{moment:.2f} {text}" for moment, text in crew.lines)
    return found, problems, log


def _await_end(crew: crews.Crew) -> list[str]:
    """Waits for the end of a training after its last fault; returns problems."""
    deadline = time.monotonic() + 900
    while crew.code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if crew.code is None:
        return ["it has not ended 900 s after the last fault"]
    problems = [] if crew.code == 0 else [f"it ended with {crew.code}"]
    time.sleep(0.3)
    return problems + [f"left over: {line}" for line in crew.left_over()]


def differences(reference: pathlib.Path, workdir: pathlib.Path, *, may_miss: bool) -> list[str]:
    """Compares the bits of two trainings: the last checkpoint and the reports (`may_miss`: some may be missing)."""
    try:
        names = [sorted(path.name for path in w.glob("checkpoints/step-????????"))[-1] for w in (reference, workdir)]
        if names[0] != names[1]:
            return [f"the last checkpoint is {names[1]} instead of {names[0]}"]
        first, second = (topologies.arrays(w, int(names[0][5:])) for w in (reference, workdir))
        kinds = {kind: [topologies.records(w, kind) for w in (reference, workdir)] for kind in ("train", "evaluation")}
    except (OSError, IndexError, ValueError, zipfile.BadZipFile) as error:
        return [f"{workdir} cannot be read: {type(error).__name__}: {error}"]
    lines = [f"the variables differ: {first.keys() ^ second.keys()}"] if first.keys() != second.keys() else []
    lines += [
        f"{name} differs" for name in first.keys() & second.keys() if first[name].tobytes() != second[name].tobytes()
    ]
    for kind, (ours, theirs) in kinds.items():
        expected = {line["step"]: _values(line) for line in ours}
        found = [(line["step"], _values(line)) for line in theirs]
        if [step for step, _ in found] != sorted({step for step, _ in found}):
            lines.append(f"{kind} is reported twice or out of order")
        lines += [f"{kind} at step {step}: {v} instead of {expected[step]}" for step, v in found if v != expected[step]]
        missing = sorted(expected.keys() - {step for step, _ in found})
        if missing and not (may_miss and kind == "train") and not (may_miss and missing[-1] < max(expected)):
            lines.append(f"{kind} is missing at steps {missing}")
    return lines


def _values(record: dict) -> tuple[float, ...]:
    return tuple(record[name] for name in ("loss", "accuracy"))


def table(outcomes: list[faults.Outcome]) -> str:
    """Returns a table with one row per kind of fault: how many, and the median and longest times in seconds."""
    rows = []
    for name in (*faults.KINDS, None):
        found, cells = [outcome for outcome in outcomes if name in (None, outcome.kind)], []
        for field in ("detection", "recovery"):
            values = [value for outcome in found if (value := getattr(outcome, field)) is not None]
            cells += [round(statistics.median(values), 1), round(max(values), 1)] if values else [None, None]
        if found:
            rows.append((name or "all", len(found), *cells))
    return tables.text(("fault", "count", "detected after s", "worst", "next step after s", "worst"), rows)


if __name__ == "__main__":
    sys.exit(main())
