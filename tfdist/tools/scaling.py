"""Measures training time for several numbers of replicas: `python -m tfdist scaling --config=... --replicas=1,2,4`.

Trains the config on each number of replicas, one after another, and writes scaling.csv and scaling.png into the
workdir: the time of an epoch, examples per second, speedup and efficiency relative to the smallest number. The first
epoch, which includes start-up and compilation, is a separate column. Replicas are workers on this machine, logical CPU
devices of one process, or, within a Slurm allocation, tasks of a Slurm step. Finished trainings are not repeated: run
the same command to resume.
"""

import dataclasses
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.tools import child_runs, tables

HEADER = (
    *("replicas", "batch_size", "first_epoch_seconds", "epoch_seconds"),
    *("examples_per_second", "speedup", "efficiency"),
)


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One training: seconds of its first and of a later epoch (median), and the examples of an epoch."""

    replicas: int
    batch_size: int
    first_epoch_seconds: float
    epoch_seconds: float
    examples: int

    @property
    def examples_per_second(self) -> float:
        """In a later epoch, over all replicas."""
        return self.examples / self.epoch_seconds


def measure(
    arguments: Sequence[str], batch_size: int, *, replicas: int, epochs: int, backend: str, to: Path
) -> Measured:
    """Trains `epochs` epochs on `replicas` replicas in the folder `to`, and reads its reports.

    There are no evaluations and no callbacks, which may need an evaluation or stop the training.

    Raises:
        ValueError: the training failed, or wrote fewer than two reports.
    """
    settings = {
        "data.batch_size": batch_size,
        "data.evaluation_split": "none",
        "callbacks": "[]",
        "train.epochs": epochs,
        "train.steps": "none",
        "report.every.epochs": 1,
        "report.every.steps": "none",
        "report.tensorboard": "false",
        "checkpoint.every.epochs": "none",
        "checkpoint.every.steps": "none",
        "checkpoint.best_metric": "none",
        "checkpoint.export": "false",
    }
    changes = [f"--config.{name}={value}" for name, value in settings.items()]
    child_runs.train([*arguments, *changes], replicas=replicas, backend=backend, workdir=to, log=to.with_suffix(".log"))
    lines = child_runs.reports(to)
    if len(lines) < 2:
        raise ValueError(
            f"{to} has the reports of {len(lines)} epoch(s), but two are needed: the first is not measured. Remove "
            "that folder and run the command again."
        )
    steps = lines[-1]["step"] - lines[-2]["step"]
    return Measured(
        replicas=replicas,
        batch_size=batch_size,
        first_epoch_seconds=lines[0]["seconds"],
        epoch_seconds=statistics.median(line["seconds"] for line in lines[1:]),
        examples=steps * batch_size,
    )


def rows(measured: Sequence[Measured]) -> list[tuple[float, ...]]:
    """Rows of `HEADER`: speedup relative to one replica of the first training; efficiency is speedup / replicas."""
    base = measured[0].examples_per_second / measured[0].replicas
    found = []
    for each in measured:
        speedup = each.examples_per_second / base
        times = (round(each.first_epoch_seconds, 4), round(each.epoch_seconds, 4))
        speeds = (round(each.examples_per_second, 2), round(speedup, 4), round(speedup / each.replicas, 4))
        found.append((each.replicas, each.batch_size, *times, *speeds))
    return found


def draw(path: Path, table: Sequence[Sequence[float]], title: str) -> bool:
    """Plots speedup and epoch time with their ideal lines; returns False if matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    replicas, epoch, speedup = ([row[column] for row in table] for column in (0, 3, 5))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    left.plot(replicas, speedup, "o-", label="measured")
    left.plot(replicas, replicas, "--", color="grey", label="ideal")
    left.set(xlabel="replicas", ylabel=f"speedup relative to {replicas[0]} replica(s)", title="examples per second")
    right.plot(replicas, epoch, "o-", label="measured")
    right.plot(replicas, [epoch[0] * replicas[0] / n for n in replicas], "--", color="grey", label="ideal")
    right.set(xlabel="replicas", ylabel="seconds", title="time of an epoch", ylim=(0, None))
    for axes in (left, right):
        axes.set_xticks(replicas)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def parse_replicas(words: Sequence[str]) -> list[int]:
    """Reads a list of numbers, sorted and without duplicates; raises a ValueError if one is not an integer >= 1."""
    if not words or not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"--replicas must be numbers from 1 on, as 1,2,4. Received: {','.join(words)!r}")
    return sorted({int(word) for word in words})


def study(argv: list[str]) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    name = config_flags.config_name()
    workdir = Path(flags.FLAGS.workdir or f"runs/{name}-scaling").expanduser()
    batch = flags.FLAGS["config"].value.data.batch_size
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    measured = []
    for replicas in parse_replicas(flags.FLAGS.replicas):
        own = batch * replicas if flags.FLAGS.batch == "weak" else batch
        print(f"{replicas} replica(s) by {backend}, batch {own} ...", flush=True)
        to = workdir / f"{flags.FLAGS.batch}-{replicas}"
        arguments = config_flags.config_arguments(argv)
        measured.append(measure(arguments, own, replicas=replicas, epochs=flags.FLAGS.epochs, backend=backend, to=to))
    table = rows(measured)
    print(tables.text(HEADER, table))
    tables.write_csv(workdir / "scaling.csv", HEADER, table)
    drawn = draw(workdir / "scaling.png", table, f"{name}, {flags.FLAGS.batch} scaling, by {backend}")
    picture = "scaling.png" if drawn else "no plot: pip install matplotlib, and run the command again"
    print(f"{workdir / 'scaling.csv'}, {picture}")


def main(argv: list[str]) -> int:
    """Runs the tool after its flags are parsed; an error of the user ends it with one message."""
    with config_flags.one_message("tfdist scaling"):
        study(sys.argv)
    return 0
