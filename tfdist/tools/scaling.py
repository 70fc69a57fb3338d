"""Measures training time for several numbers of replicas: `python -m tfdist scaling --config=... --replicas=1,2,4`.

Trains the config on each number of replicas, one after another, and writes tables and pictures into the workdir: the
time of an epoch, examples per second, speedup and efficiency relative to the smallest number, the loss and metrics
after the same epochs, and the time of input, compute and communication. The first epoch, which includes start-up and
compilation, is a separate column.

Replicas are workers on this machine, logical CPU devices of one process, or, within a Slurm allocation (sbatch or
salloc, without srun), tasks of a Slurm step. Finished trainings are not repeated by the same command. One that was
interrupted is trained from its start: the start-up and the compilation of a resumed one would be in its later epochs.
`python -m tfdist plot DIR DIR` draws several studies in one picture.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.config import diff, schema
from tfdist.config import flags as config_flags
from tfdist.config.command_line import words
from tfdist.report import files, reporter, run_info
from tfdist.tools import child_runs, measure, scaling_results, tables
from tfdist.tools.pictures import scaling as pictures
from tfdist.tools.pictures import style
from tfdist.tools.scaling_results import Point, Study

HEADER = (
    *("replicas", "batch_size", "first_epoch_seconds", "epoch_seconds"),
    *("examples_per_second", "speedup", "efficiency"),
)
# As they are printed.
_SHOWN = ("replicas", "batch", "first epoch, s", "later epochs, s", "examples/s", "speedup", "efficiency")

# In the directory of a training that was measured as a whole: with which fields of the config, and on what.
_MEASURED = "measured_with.json"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_list("replicas", ["1", "2"], "The numbers of replicas, as 1,2,4.")
    child_runs.define_by()
    flags.DEFINE_enum(
        "batch",
        "weak",
        ["weak", "strong"],
        "weak: config.data.batch_size per replica; strong: the same global batch for all numbers.",
    )
    flags.DEFINE_integer("epochs", 3, "Epochs of each training; the first is not measured.", lower_bound=2)
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-scaling for a config NAME.py.")
    scaling_results.define_published()


def measured_with(config: schema.Config, epochs: int, backend: str) -> dict[str, Any]:
    """Returns what a training is measured with, as JSON: also fields that change its time only."""
    fields = {f"config.{name}": value for name, value in diff.flatten(diff.to_json(config))}
    return fields | {"--epochs": epochs, "--by": backend}


def measure_one(
    arguments: Sequence[str], batch_size: int, *, replicas: int, made: Mapping[str, Any], to: Path
) -> Point:
    """Trains on `replicas` replicas in the directory `to`, unless that is done, and reads its reports.

    There are no evaluations and no callbacks, which may need an evaluation or stop the training. `made`: a result of
    `measured_with`. Raises ValueError if the training failed, wrote fewer than two reports, or was measured otherwise.
    """
    before = files.read_json(to / _MEASURED)
    for name in made if before else ():
        if before.get(name) != made[name]:
            was = f"{name} was {before.get(name)!r}, and is now {made[name]!r}"
            raise ValueError(f"{to} was measured with another command: {was}. Choose another --workdir.")
    settings = child_runs.BARE | {
        "data.batch_size": batch_size,
        "train.epochs": made["--epochs"],
        "train.steps": "none",
        "report.every.epochs": 1,
        "report.every.steps": "none",
        "report.every.after": "none",
    }
    changes = [f"--config.{name}={value}" for name, value in settings.items()]
    options = {"workdir": to, "log": to.with_suffix(".log"), "fresh": before is None}
    child_runs.train([*arguments, *changes], replicas=replicas, backend=made["--by"], **options)
    files.write_json(to / _MEASURED, made)
    lines = child_runs.reports(to)
    if len(lines) < 2:
        raise ValueError(
            f"{to} has the reports of {len(lines)} epoch(s), but two are needed: the first is not measured. Remove "
            "that directory and run the command again."
        )
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


def rows(study: Study) -> list[tuple[float, ...]]:
    """Rows of `HEADER`: speedup relative to one replica of the first training; efficiency is speedup / replicas."""
    found = []
    for point, speedup in zip(study.points, study.speedups(), strict=True):
        times = (round(point.first_epoch_seconds, 4), round(point.epoch_seconds, 4))
        speeds = (round(point.examples_per_second, 2), round(speedup, 4), round(speedup / point.replicas, 4))
        found.append((point.replicas, point.batch_size, *times, *speeds))
    return found


def more_rows(study: Study) -> tuple[tuple[str, ...], list[tuple[float | None, ...]]]:
    """Returns header and rows of the rest: fastest and slowest epoch, seconds of each part, the values at the end."""
    names = list(dict.fromkeys(name for point in study.points for name in point.values))
    header = ("epoch_seconds_min", "epoch_seconds_max", *(f"{part}_seconds" for part in scaling_results.CAUSES), *names)
    found = []
    for point in study.points:
        times = [*(choose(point.later_epoch_seconds) for choose in (min, max))]
        times += [point.part_seconds().get(part) for part in scaling_results.CAUSES]
        every = times + [point.values.get(name) for name in names]
        found.append(tuple(None if value is None else round(value, 5) for value in every))
    return header, found


def parse_numbers(flag: str) -> list[int]:
    """Reads the numbers of a flag, sorted and without duplicates; raises a ValueError if one is no integer >= 1."""
    words = flags.FLAGS[flag].value
    if not words or not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"--{flag} must be numbers from 1 on, as 1,2,4. Received: {','.join(words)!r}")
    return sorted({int(word) for word in words})


def describe(config: schema.Config, batch: str, epochs: int, backend: str, first: Path) -> str:
    """Returns one line for the caption: model, batch, epochs, what a replica is, machine and TensorFlow's version."""
    model = config.model.get("name") or str(config.model["target"]).rpartition(":")[2]
    per = "per replica" if batch == "weak" else "over all replicas"
    versions = json.loads((first / run_info.ENVIRONMENT).read_text())["versions"]
    kind = {"processes": "process", "devices": "device", "slurm": "Slurm task"}[backend]
    later = "epoch 2" if epochs == 2 else f"median and range of epochs 2 to {epochs}"
    return (
        f"{model}, batch {config.data.batch_size:,} {per} ({batch} scaling), {later}, "
        f"a replica is a {kind}, {measure.machine()}, TensorFlow {versions.get('tensorflow', '?')}"
    )


def main(argv: list[str]) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    values, name = flags.FLAGS, config_flags.config_name()
    workdir = Path(values.workdir or f"runs/{name}-scaling").expanduser()
    config = values["config"].value
    backend = child_runs.choose_backend(values.by, os.environ)
    others = [scaling_results.read_published(each) for each in values.published]
    made = measured_with(config, values.epochs, backend)
    points = []
    for replicas in parse_numbers("replicas"):
        batch = config.data.batch_size * (replicas if values.batch == "weak" else 1)
        print(f"{replicas} replica(s) by {backend}, batch {batch} ...", flush=True)
        to = workdir / f"{values.batch}-{replicas}"
        arguments = words.config_arguments(sys.argv[1:])
        points.append(measure_one(arguments, batch, replicas=replicas, made=made, to=to))
    first = workdir / f"{values.batch}-{points[0].replicas}"
    described = describe(config, values.batch, values.epochs, backend, first)
    found = Study(name=config.model.get("name") or name, described=described, points=points)
    show(workdir, found, others)


def show(workdir: Path, found: Study, others: Sequence[Study]) -> None:
    """Prints and writes tables and pictures; `others` are published studies, which are drawn as well."""
    table, (header, more) = rows(found), more_rows(found)
    print(tables.text(_SHOWN, table))
    short = (
        "replicas",
        "fastest epoch",
        "slowest",
        *scaling_results.CAUSES,
        *header[2 + len(scaling_results.CAUSES) :],
    )
    print(tables.text(short, [(row[0], *rest) for row, rest in zip(table, more, strict=True)]))
    reason = scaling_results.reason(found)
    if reason:
        print(reason)
    tables.write_csv(workdir / "scaling.csv", (*HEADER, *header), [a + b for a, b in zip(table, more, strict=True)])
    scaling_results.write(workdir, found)
    print(workdir / "scaling.csv")
    every = [found, *others]
    print(style.save(workdir / "scaling", lambda: pictures.draw(every)))
