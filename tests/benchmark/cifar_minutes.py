"""Minutes to an accuracy on CIFAR-10: `configs/cifar_fast.py` beside the public speed record in its own PyTorch code.

    git clone https://github.com/KellerJordan/cifar10-airbench
    python -m tests.benchmark.cifar_minutes cifar10-airbench/airbench94_muon.py FOLDER --directory=DIR

FOLDER has train/CLASS/NAME.jpg and test/CLASS/NAME.jpg. Both train with each seed, in turn: PyTorch in one process with
all cores, tfdist in two workers that share them. Minutes are those of training, without the start and the evaluations.
Prints a table, and draws the curves into DIR; what is in DIR already is not trained again. Needs PyTorch, torchvision,
Pillow and matplotlib, and on two cores 25 minutes a seed.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tfdist.tools import tables
from tfdist.tools.pictures import style

RECORD, OURS = "the record, in PyTorch", "configs/cifar_fast.py"
# The end of a line that `tfdist evaluate` prints.
_ACCURACY = re.compile(r"accuracy (0\.\d+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A training: after each epoch the minutes so far and the accuracy, then the accuracy with six views an image."""

    minutes: Sequence[float]
    accuracy: Sequence[float]
    views: float


def run(command: Sequence[str], output: pathlib.Path) -> str:
    """Runs a command whose output goes to a file; returns the output.

    Raises:
        SystemExit: it failed.
    """
    unfinished = output.with_suffix(".unfinished")
    with open(unfinished, "w", encoding="utf-8") as file:
        code = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        sys.exit(f"{' '.join(command)} ended with code {code}: see {unfinished}")
    unfinished.rename(output)
    return output.read_text(encoding="utf-8")


def train_record(flags: argparse.Namespace, seed: int) -> Curve:
    """Trains the record once, or reads what it printed."""
    output = flags.directory / f"record-{seed}.txt"
    words = ["-m", "tests.benchmark.pytorch.airbench", flags.record, flags.folder]
    words += [f"--epochs={flags.epochs}", f"--seeds={seed}"]
    text = output.read_text(encoding="utf-8") if output.exists() else run(words, output)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    epochs = [row for row in rows if row[1].isdecimal()]
    minutes, accuracy = ([float(row[column]) for row in epochs] for column in (5, 3))
    return Curve(minutes=[one / 60 for one in minutes], accuracy=accuracy, views=float(rows[-1][4]))


def train_ours(flags: argparse.Namespace, seed: int) -> Curve:
    """Trains the config once, or reads its run."""
    workdir, output = (flags.directory / f"tfdist-{seed}{suffix}" for suffix in ("", ".txt"))
    source = {"target": "tfdist.zoo.sources:image_folder", "path": flags.folder}
    words = ["-m", "tfdist.launch", "--workers=2", "--", "--config=configs/cifar_fast.py", f"--workdir={workdir}"]
    words += [f"--config.data.source={source}", f"--config.train.epochs={flags.epochs}", f"--config.seed={seed}"]
    words += ["--config.train.precision=bfloat16"]
    if not output.exists():
        shutil.rmtree(workdir, ignore_errors=True)
        one_view = ["--config.objective.mirror=false", "--config.objective.shift=0"]
        run([*words, *one_view, "--config.evaluation.every.epochs=1"], output.with_suffix(".training.txt"))
        run([*words, "--mode=eval", "--allow_config_changes"], output)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if line["kind"] == "train"]
    return Curve(
        minutes=[sum(seconds[: count + 1]) / 60 for count in range(len(seconds))],
        accuracy=[line["accuracy"] for line in lines if line["kind"] == "evaluation"],
        views=float(_ACCURACY.findall(output.read_text(encoding="utf-8"))[-1]),
    )


def rows_of(found: dict[str, list[Curve]]) -> list[tuple]:
    """Returns a row for each epoch, and one with six views: means over the seeds, and the deviation of the last."""
    rows: list[tuple] = []
    for epoch in range(len(found[OURS][0].minutes)):
        cells = [
            f"{100 * statistics.mean(one.accuracy[epoch] for one in curves):.2f} % in "
            f"{statistics.mean(one.minutes[epoch] for one in curves):.1f} min"
            for curves in found.values()
        ]
        rows.append((epoch + 1, *cells))
    views = [[100 * one.views for one in curves] for curves in found.values()]
    rows.append(("six views", *(f"{statistics.mean(one):.2f} % +- {statistics.stdev(one):.2f}" for one in views)))
    return rows


def draw(found: dict[str, list[Curve]]) -> Any:
    """Returns a figure with a curve for each training."""
    figure, (axes,) = style.figure(
        "Minutes to an accuracy on CIFAR-10",
        "A line for each seed: accuracy on the 10,000 test images after each epoch, over the minutes of training; the "
        "open mark above its end is that of six views of each image. JPEG files, two cores, bfloat16.",
        size=(10.0, 5.5),
    )
    for index, (name, curves) in enumerate(found.items()):
        for number, curve in enumerate(curves):
            label = None if number else name
            axes.plot(curve.minutes, [100 * one for one in curve.accuracy], label=label, **style.series(index))
            axes.plot(curve.minutes[-1], 100 * curve.views, **style.series(index), fillstyle="none")
    axes.set(xlabel="minutes of training", ylabel="accuracy, %", ylim=(45, 95))
    axes.legend(loc="lower right")
    return figure


def main() -> None:
    """Trains, prints the table and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record")
    parser.add_argument("folder")
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    flags = parser.parse_args()
    flags.directory.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Curve]] = {RECORD: [], OURS: []}
    for seed in range(flags.seeds):
        found[RECORD].append(train_record(flags, seed))
        found[OURS].append(train_ours(flags, seed))
    print(tables.text(("epoch", *found), rows_of(found)))
    print(style.save(flags.directory / "cifar_minutes", lambda: draw(found)))


if __name__ == "__main__":
    main()
