"""Measures training time for several numbers of replicas: `python -m tfdist scaling --config=... --replicas=1,2,4`.

Trains the config on each number of replicas, one after another, and writes a table and a picture into the workdir: the
time of an epoch, examples per second, speedup and efficiency relative to a replica of the smallest run, the loss and
metrics after the same epochs, and the time of input, compute and communication. The first epoch, which includes
start-up and compilation, is a separate column.

Replicas are workers on this machine, devices of one process, or, within a Slurm allocation (sbatch or salloc, without
srun), tasks of a Slurm step. The same command measures everything again. `python -m tfdist plot DIR DIR` draws several
studies in one picture.
"""

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.config import tool_flags
from tfdist.report import reporter
from tfdist.tools import child_runs, measure, scaling_results, tables
from tfdist.tools.pictures import scaling as pictures
from tfdist.tools.pictures import style
from tfdist.tools.scaling_results import CAUSES, Point, Study

# The columns of the printed table; and those of scaling.csv, in which the objective's values follow.
SHOWN = ("replicas", "batch", "first epoch, s", "later, s", "examples/s", "speedup", "efficiency", *CAUSES)
HEADER = ("replicas", "batch_size", "first_epoch_seconds", "epoch_seconds", "examples_per_second")
HEADER += ("speedup", "efficiency", *(f"{cause}_seconds" for cause in CAUSES))

# If the slowest later epoch takes this many times as long as the fastest, more epochs are needed.
_SPREAD = 1.25


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    meaning = "The numbers of replicas. Default: 1,2."
    parser.add_argument("--replicas", metavar="1,2,4", type=tool_flags.numbers, default=[1, 2], help=meaning)
    child_runs.add_by(parser)
    meaning = "weak: the batch of the config per replica; strong: over all replicas. Default: weak."
    parser.add_argument("--batch", default="weak", choices=["weak", "strong"], help=meaning)
    meaning = "Epochs of each training; the first has a column of its own. Default: 3."
    parser.add_argument("--epochs", metavar="N", type=tool_flags.at_least(2), default=3, help=meaning)
    parser.add_workdir("runs/NAME-scaling")


def main(args: argparse.Namespace) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    config, backend = args.config, child_runs.choose_backend(args.by, os.environ)
    points = []
    for replicas in args.replicas:
        batch = config.data.batch_size * (replicas if args.batch == "weak" else 1)
        print(f"{replicas} replica(s) by {backend}, batch {batch} ...", flush=True)
        to = args.workdir / f"{args.batch}-{replicas}"
        made = measure_one(args.config_words, batch, replicas=replicas, backend=backend, epochs=args.epochs, to=to)
        points.append(made)
    name = config.model.get("name") or args.config_name
    kind = {"processes": "process", "devices": "device", "slurm": "Slurm task"}[backend]
    described = (
        f"{name}, batch {config.data.batch_size:,} ({args.batch} scaling), epochs 2 to {args.epochs}, a replica is a "
        f"{kind}, {measure.machine()}"
    )
    show(args.workdir, Study(name=name, described=described, points=points))


def show(workdir: Path, found: Study) -> None:
    """Prints and writes table and picture."""
    names, table = rows(found)
    print(tables.text((*SHOWN, *names), table))
    if reason := scaling_results.reason(found):
        print(reason)
    spread = max(max(point.later_epoch_seconds) / min(point.later_epoch_seconds) for point in found.points)
    if spread > _SPREAD:
        print(f"The epochs of one training differ by a factor of {spread:.2f}: measure more of them, --epochs=10.")
    tables.write_csv(workdir / "scaling.csv", (*HEADER, *names), table)
    scaling_results.write(workdir, found)
    print(workdir / "scaling.csv")
    print(style.save(workdir / "scaling", lambda: pictures.draw([found])))


def rows(study: Study) -> tuple[list[str], list[tuple[float | None, ...]]]:
    """Returns the names of the objective's values, and the rows of the table: `HEADER`, and these values.

    The speedup is relative to one replica of the first training; efficiency is speedup / replicas.
    """
    names = list(dict.fromkeys(name for point in study.points for name in point.values))
    found = []
    for point, speedup in zip(study.points, study.speedups(), strict=True):
        times = (point.first_epoch_seconds, point.epoch_seconds, point.examples_per_second)
        shares = point.shares or [None] * len(CAUSES)
        parts = [None if share is None else share * point.epoch_seconds for share in shares]
        numbers = (*times, speedup, speedup / point.replicas, *parts)
        numbers += tuple(point.values.get(name) for name in names)
        rounded = (None if number is None else round(number, 5) for number in numbers)
        found.append((point.replicas, point.batch_size, *rounded))
    return names, found


def measure_one(
    arguments: Sequence[str], batch_size: int, *, replicas: int, backend: str, epochs: int, to: Path
) -> Point:
    """Trains on `replicas` replicas in the directory `to`, which is removed first, and reads its reports.

    There are no evaluations and no callbacks, which may need an evaluation or stop the training. Raises ValueError if
    the training failed.
    """
    settings = child_runs.BARE | {
        "data.batch_size": batch_size,
        "train.epochs": epochs,
        "train.steps": "none",
        "report.every.epochs": 1,
        "report.every.steps": "none",
        "report.every.after": "none",
    }
    changes = [f"--config.{name}={value}" for name, value in settings.items()]
    log = to.with_suffix(".log")
    child_runs.train([*arguments, *changes], replicas=replicas, backend=backend, workdir=to, log=log, fresh=True)
    lines = child_runs.reports(to)
    return Point(
        replicas=replicas,
        batch_size=batch_size,
        first_epoch_seconds=lines[0]["seconds"],
        later_epoch_seconds=[line["seconds"] for line in lines[1:]],
        examples=(lines[-1]["step"] - lines[-2]["step"]) * batch_size,
        values={
            name: value for name, value in lines[-1].items() if name not in reporter.RESERVED and value is not None
        },
        shares=shares(lines[1:], replicas),
    )


def shares(lines: Sequence[Mapping[str, Any]], replicas: int) -> list[float] | None:
    """Returns the fractions of input, compute and communication, means over the reports and the workers in them.

    None: they were not measured, as on several devices of one process, where communication is part of a step.
    """
    rows = [row for line in lines for row in line.get("worker_shares", [])]
    if not rows and replicas == 1:
        waits = [line["input_wait_share"] for line in lines if "input_wait_share" in line]
        rows = [(share, 1 - share, 0.0) for share in waits]
    return [statistics.mean(column) for column in zip(*rows, strict=True)] if rows else None
