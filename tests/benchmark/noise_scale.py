"""Compares steps to a target accuracy with what the noise scale predicts: `python -m tests.benchmark.noise_scale`.

    python -m tests.benchmark.noise_scale --data=digits
    python -m tests.benchmark.noise_scale --data=cifar --images=cifar10-images.tar.xz

`digits` and `cifar` train a small network with each of four global batches, by plain SGD with a constant rate, until an
evaluation reaches the target. For each batch the rate is doubled, from the best one of the batch before, while this
needs fewer steps. Steps are the geometric mean over the seeds; between two evaluations the accuracy is interpolated.
Only the trainings of the smallest batch, with their noise scale, are used for the prediction. The archive of `cifar`
has train/CLASS/NAME.jpg and test/CLASS/NAME.jpg. Finished trainings are kept in --workdir.
"""

import dataclasses
import io
import json
import math
import statistics
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags

from tfdist import config as c
from tfdist.tools import child_runs, tables
from tfdist.tools.many_runs import time_to_target

# Steps over which the noise scale is averaged.
AVERAGE = 30
# Evaluations and reports until the expected end of a training, and how many times longer the first one of a batch may
# be; the others may be so many times longer than the shortest before.
EVALUATIONS, LONGEST, LONGER = 25, 4, 1.3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is trained until an accuracy is reached."""

    target: float
    batches: Sequence[int]
    # The first learning rate with the first batch, and the expected steps.
    rate: float
    steps: int
    seeds: int
    settings: dict[str, Any]


TASKS = {
    "digits": Task(
        target=0.95,
        batches=(8, 32, 128, 512),
        rate=0.1,
        steps=400,
        seeds=3,
        settings={
            "model": {"target": "tfdist.zoo.models:mlp", "input_shape": (8, 8, 1), "hidden": (64,)},
            "data.evaluation_batch_size": 355,
        },
    ),
    "cifar": Task(
        target=0.55,
        batches=(32, 128, 512, 2048),
        rate=0.04,
        steps=2500,
        seeds=2,
        settings={
            "model": {"target": "tests.benchmark.noise_scale:network"},
            "data.prepare.scale": 1 / 255,
            "data.evaluation_split": "test[:5000]",
            "data.evaluation_batch_size": 1000,
        },
    ),
}


def network() -> keras.Model:
    """Returns three convolutions with stride 2 and a layer of logits for images of 32x32, without normalisation."""
    layers = [keras.Input((32, 32, 3), name="image"), keras.layers.Rescaling(4.0, -2.0)]
    for filters in (16, 32, 64):
        layers.append(keras.layers.Conv2D(filters, 3, 2, padding="same", activation="relu"))
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def get_config() -> c.Config:
    """Returns the config of all trainings; a task changes some of its fields."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp"},
        data=c.Data(prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16}),
        optimizer={"target": "keras.optimizers:SGD"},
        consistency=c.Consistency(every=c.Every()),
        checkpoint=c.Checkpoint(every=c.Every(), export=False),
        callbacks=[{"target": "tests.benchmark.noise_scale:StopAt"}],
        report=c.Report(every=c.Every(), noise_scale=AVERAGE, tensorboard=False),
        train=c.Train(steps=1, micro_batches=2, call_seconds=0.5),
    )


class StopAt(keras.callbacks.Callback):
    """Ends a training when an evaluation reaches `accuracy`."""

    def __init__(self, accuracy: float):
        super().__init__()
        self.accuracy = accuracy

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        """Looks at the accuracy."""
        self.model.stop_training = self.model.stop_training or logs["accuracy"] >= self.accuracy


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A training: steps to the target, infinite if it was not reached, and its mean noise scale."""

    steps: float
    noise_scale: float


def steps_to(target: float, evaluations: Sequence[tuple[int, float]]) -> float:
    """Returns at which step the accuracy reached `target`, given (step, accuracy) in order; inf: it did not."""
    before = (0, 0.1)
    for step, accuracy in evaluations:
        if accuracy >= target:
            part = (target - before[1]) / (accuracy - before[1])
            return before[0] + part * (step - before[0])
        before = (step, accuracy)
    return math.inf


def train(
    task: Task, source: dict[str, Any], batch: int, rate: float, seed: int, to: Path, expected: float, most: float
) -> Result:
    """Trains once, unless `to` holds the result; a training that diverges does not reach the target.

    Args:
        expected: steps until the target.
        most: the training ends after these steps.
    """
    known = to / "result.json"
    if not known.exists():
        every = max(1, round(expected / EVALUATIONS))
        settings = {
            **task.settings,
            "data.batch_size": batch,
            "learning_rate.peak": rate,
            "evaluation.every.epochs": "none",
            "evaluation.every.steps": every,
            "report.every.steps": every,
            "train.steps": max(every, round(most)),
            "callbacks": [{"target": "tests.benchmark.noise_scale:StopAt", "accuracy": task.target}],
            "data.source": source,
            "seed": seed,
        }
        words = [f"--config={__file__}", *(f"--config.{name}={value}" for name, value in settings.items())]
        try:
            child_runs.train(words, replicas=1, backend="devices", workdir=to, log=to.with_suffix(".log"))
        except ValueError as error:
            if "loss is" not in str(error):
                raise
        evaluations = [(one["step"], one["accuracy"]) for one in child_runs.reports(to, "evaluation")]
        steps = steps_to(task.target, evaluations)
        known.write_text(json.dumps({"steps": None if math.isinf(steps) else steps}))
    steps = json.loads(known.read_text())["steps"]
    parts = time_to_target.means(child_runs.reports(to), AVERAGE)
    return Result(math.inf if steps is None else steps, time_to_target.average(parts, batch))


def compare(task: Task, source: dict[str, Any], workdir: Path) -> None:
    """Trains with all batches, and prints measured and predicted steps."""
    rate, expected, first, rows = task.rate, float(task.steps), None, []
    for batch in task.batches:
        if first is not None:
            expected = time_to_target.steps_to_target(
                first[1], batch, measured_steps=first[0], measured_batch=task.batches[0]
            )
        best: list[Result] = []
        most = LONGEST * max(expected, EVALUATIONS)
        while True:
            folder = workdir / f"batch{batch}-rate{rate:g}"
            seeds = range(task.seeds)
            found = [train(task, source, batch, rate, seed, folder / f"seed{seed}", expected, most) for seed in seeds]
            steps = mean([one.steps for one in found])
            print(f"batch {batch}, rate {rate:g}: {steps:.0f} steps", flush=True)
            if best and steps >= mean([one.steps for one in best]):
                break
            best, rate, most = found, 2 * rate, min(most, LONGER * steps)
        rate /= 2
        measured = mean([one.steps for one in best])
        own = mean([one.noise_scale for one in best])
        if first is None:
            first, expected = (measured, own), measured
        spread = [min(one.steps for one in best), max(one.steps for one in best)]
        rows.append((batch, rate, measured, *spread, expected, expected / measured, own, measured * batch))
    header = (
        "batch",
        "rate",
        "steps",
        "fewest",
        "most",
        "predicted",
        "predicted / measured",
        "noise scale",
        "examples",
    )
    print(tables.text(header, rows))
    fitted = fit([row[0] for row in rows], [row[2] for row in rows])
    print(f"Fitted to the measured steps: noise scale {fitted[1]:.0f}, fewest steps {fitted[0]:.0f}")


def mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))


def fit(batches: Sequence[int], steps: Sequence[float]) -> tuple[float, float]:
    """Returns S_min and B_noise for which S_min (1 + B_noise / B) has the smallest relative squared error."""
    columns = np.stack([np.ones(len(batches)), 1 / np.array(batches)], axis=1) / np.array(steps)[:, None]
    (fewest, slope), *_ = np.linalg.lstsq(columns, np.ones(len(batches)), rcond=None)
    return float(fewest), float(slope / fewest)


def images_of(archive: Path, workdir: Path) -> Path:
    """Decodes the archive of JPEG files into one .npz file, once, and returns its path."""
    import tensorflow as tf

    path = workdir / "images.npz"
    if not path.exists():
        found: dict[str, list] = {f"{kind}_{split}": [] for kind in ("image", "label") for split in ("train", "test")}
        classes: dict[str, int] = {}
        with tarfile.open(archive) as file:
            for member in file:
                if member.name.endswith(".jpg"):
                    split, name = Path(member.name).parts[-3:-1]
                    found[f"image_{split}"].append(tf.io.decode_jpeg(file.extractfile(member).read()).numpy())
                    found[f"label_{split}"].append(classes.setdefault(name, len(classes)))
        content = io.BytesIO()
        np.savez(content, **{name: np.array(values) for name, values in found.items()})
        path.write_bytes(content.getvalue())
    return path


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_enum("data", "digits", list(TASKS), "What is trained.")
    flags.DEFINE_string("images", None, "The archive of CIFAR-10's images, for --data=cifar.")
    flags.DEFINE_string("workdir", None, "Directory of the trainings. Default: runs/noise-scale-DATA.")


def main(argv: list[str]) -> None:
    """Trains what the flags name."""
    del argv
    values, source = flags.FLAGS, {"target": "tfdist.zoo.sources:digits"}
    workdir = Path(values.workdir or f"runs/noise-scale-{values.data}").absolute()
    if values.data == "cifar":
        if values.images is None:
            sys.exit(
                "--data=cifar needs --images=ARCHIVE, a tar file with train/CLASS/NAME.jpg and test/CLASS/NAME.jpg."
            )
        workdir.mkdir(parents=True, exist_ok=True)
        source = {"target": "tfdist.zoo.sources:npz", "path": str(images_of(Path(values.images), workdir))}
    compare(TASKS[values.data], source, workdir)


if __name__ == "__main__":
    define_flags()
    app.run(main)
