"""Trains with common mistakes of data-parallel training beside the correct run: `python -m tfdist parallel_mistakes`.

A small network learns the digits of the package on connected workers, in seconds, once correctly and once with each
mistake: no broadcast, no averaging, the sum of gradients divided by a worker's own batch, an unseeded shuffle, batch
then shuffle, and a learning rate that is not scaled. Prints a table, and draws the accuracy of each worker beside that
of the right run.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.cluster import process_exit
from tfdist.config import specs, tool_flags
from tfdist.configs.laboratory import by_hand
from tfdist.configs.laboratory.by_hand import Recipe
from tfdist.tools import child_runs, measure, tables
from tfdist.tools.pictures import style

RIGHT = "right"
# Mistake -> what it does.
TITLES = {
    "no broadcast": "The workers start, and stay, apart",
    "no average": "Each worker trains alone, on its part",
    "divided by own batch": "W workers: gradients are W times too large",
    "unseeded shuffle": "Each worker has its own permutation",
    "batch then shuffle": "A batch has few classes, in every epoch",
    "unscaled rate": "Fewer steps, none of them larger",
}
HEADER = ("training", "accuracy", "lowest_of_workers", "weights_apart", "not_seen_in_an_epoch")
# As they are printed.
_SHOWN = ("training", "accuracy", "lowest of the workers", "weights apart", "not seen in an epoch", "what happens")
# Accuracies that differ less than this are seen as one curve.
_ALIKE = 0.01
# Batch and learning rate of one worker; hidden units; standard deviation of the initial weights.
_BATCH, _RATE, _HIDDEN, _SCALE = 16, 0.1, 32, 0.1


class Digits:
    """A `by_hand.Problem`: a perceptron with one hidden layer on digits, sorted by class as folders on disk are."""

    def __init__(self, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]):
        order = np.argsort(train[1], kind="stable")
        self._images, self._labels = train[0][order], train[1][order]
        self._test = test
        self.num_examples = len(self._labels)
        self._shapes = ((train[0].shape[1], _HIDDEN), (_HIDDEN,), (_HIDDEN, 10), (10,))

    def start(self, seed: int) -> np.ndarray:
        """Returns normally distributed weights."""
        size = sum(int(np.prod(shape)) for shape in self._shapes)
        return _SCALE * np.random.default_rng(seed).normal(size=size)

    def gradient(self, weights: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, float]:
        """See `by_hand.Problem`: of the cross-entropy."""
        images, labels = self._images[ids], self._labels[ids]
        _, _, out, _ = self._split(weights)
        hidden, probabilities = self._forward(weights, images)
        loss = -np.sum(np.log(probabilities[np.arange(len(ids)), labels] + 1e-12))
        error = probabilities - np.eye(10)[labels]
        back = (error @ out.T) * (hidden > 0)
        parts = (images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts]), float(loss)

    def test(self, weights: np.ndarray) -> float:
        """Returns the accuracy on the test images."""
        return float(np.mean(self._forward(weights, self._test[0])[1].argmax(axis=1) == self._test[1]))

    def _split(self, weights: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(weights, ends), self._shapes, strict=True)]

    def _forward(self, weights: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        into, bias, out, last = self._split(weights)
        hidden = np.maximum(images @ into + bias, 0.0)
        logits = hidden @ out + last
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)


def digits() -> Digits:
    """Returns the problem; the images are those of the source `tfdist.zoo.sources:digits`."""
    found = []
    for split in ("train", "test"):
        source = specs.build({"target": "tfdist.zoo.sources:digits"}, split, field="source")
        batch = source.read(np.arange(len(source)))
        images = np.asarray(batch["image"], np.float64).reshape(len(source), -1) / 16
        found.append((images, np.asarray(batch["label"], np.int64)))
    return Digits(*found)


def recipes(workers: int, epochs: int, num_examples: int, seed: int = 0) -> list[Recipe]:
    """Returns the right training, and the same with each of the mistakes of `TITLES`.

    Right is: one start, gradients summed over the workers and divided by the global batch, one permutation of the
    examples that is cut into the workers' parts, and a learning rate that grows with the global batch.
    """
    batch = _BATCH * workers
    shared = {"steps": epochs * (num_examples // batch), "batch": batch, "rate": _RATE * workers, "seed": seed}
    return [
        Recipe(name=RIGHT, **shared),
        Recipe(name="no broadcast", broadcast=False, **shared),
        Recipe(name="no average", average=False, **shared),
        Recipe(name="divided by own batch", divide_by_own=True, **shared),
        Recipe(name="unseeded shuffle", order="unseeded", **shared),
        Recipe(name="batch then shuffle", order="batches", **shared),
        Recipe(name="unscaled rate", **shared | {"rate": _RATE}),
    ]


def not_seen(recipe: Recipe, num_examples: int, workers: int) -> float:
    """Returns the fraction of an epoch's examples that no worker uses in the first epoch, 0 to 1."""
    steps = num_examples // recipe.batch
    seen = [
        by_hand.own_examples(recipe, num_examples, step, rank, workers)
        for step in range(steps)
        for rank in range(workers)
    ]
    return 1 - len(np.unique(np.concatenate(seen))) / (steps * recipe.batch)


def rows(
    found: Mapping[str, Sequence[Mapping[str, np.ndarray]]], chosen: Sequence[Recipe], num_examples: int
) -> list[tuple]:
    """Returns rows of `HEADER`; accuracies and the largest difference of the weights are those after the last epoch."""
    table = []
    for recipe in chosen:
        workers = found[recipe.name]
        accuracy = [float(each["test"][-1]) for each in workers]
        apart = max(float(np.abs(each["weights"][-1] - workers[0]["weights"][-1]).max()) for each in workers)
        missed = not_seen(recipe, num_examples, len(workers))
        table.append(
            (recipe.name, round(float(np.mean(accuracy)), 4), round(min(accuracy), 4), apart, round(missed, 4))
        )
    return table


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    meaning = "The number of workers. Default: %(default)s."
    parser.add_argument("--workers", metavar="N", type=tool_flags.at_least(2), default=4, help=meaning)
    meaning = "Epochs of each training. Default: %(default)s."
    parser.add_argument("--epochs", metavar="N", type=tool_flags.at_least(1), default=12, help=meaning)
    meaning = "What a worker is: a process, or a Slurm task. Default: a task within Slurm."
    parser.add_argument("--by", default="auto", choices=["auto", "processes", "slurm"], help=meaning)
    parser.add_workdir("runs/parallel_mistakes")


def main(args: argparse.Namespace) -> None:
    """Runs all trainings, and prints and writes the results."""
    workdir = args.workdir
    backend = child_runs.choose_backend(args.by, os.environ)
    process_exit.import_tensorflow_quietly()
    problem = digits()
    chosen = recipes(args.workers, args.epochs, problem.num_examples)
    print(f"{len(chosen)} trainings on {args.workers} workers by {backend} ...", flush=True)
    found = by_hand.run_workers(
        {"target": "tfdist.configs.laboratory.parallel_mistakes:digits"},
        chosen,
        workers=args.workers,
        backend=backend,
        workdir=workdir / "workers",
    )
    table = rows(found, chosen, problem.num_examples)
    print(tables.text(_SHOWN, [(*row, TITLES.get(row[0], "one network, the same on all workers")) for row in table]))
    tables.write_csv(workdir / "parallel_mistakes.csv", HEADER, table)
    print(workdir / "parallel_mistakes.csv")
    tests = {name: [each["test"] for each in workers] for name, workers in found.items()}
    caption = (
        f"A perceptron with {_HIDDEN} hidden units on {problem.num_examples:,} digits, sorted by class as in folders; "
        f"{args.workers} workers, batch {_BATCH} and learning rate {_RATE} for each, {args.epochs} epochs, "
        f"{measure.machine()}"
    )
    print(style.save(workdir / "parallel_mistakes", lambda: draw(tests, table, caption=caption)))


def draw(tests: Mapping[str, Sequence[np.ndarray]], table: Sequence[tuple], *, caption: str) -> Any:
    """Returns a figure with a panel for each mistake: the accuracy of each worker by epoch, and that of the right run.

    Args:
        tests: training -> of each worker the accuracy after each epoch, float64 [epochs].
        table: of `HEADER`.
        caption: what was trained.
    """
    figure, panels = style.figure("Six common mistakes", caption, columns=3, rows=2, size=(15.0, 8.0), share="xy")
    rows = {row[0]: row for row in table}
    for axes, (name, meaning) in zip(panels, TITLES.items(), strict=True):
        epochs = np.arange(1, 1 + len(tests[RIGHT][0]))
        alike = np.ptp(np.array(tests[name]), axis=0).max() < _ALIKE
        axes.plot(epochs, tests[RIGHT][0], color=style.GREY, linestyle="--", label="right")
        for rank, each in enumerate(tests[name]):
            width = 1.6 + 1.8 * alike * (len(tests[name]) - 1 - rank)  # Curves that coincide are all visible.
            look = style.series(rank) | {"linewidth": width, "markersize": 5, "alpha": 0.9}
            axes.plot(epochs, each, **look, label=f"worker {rank}")
        _, mean, _, apart, missed = rows[name]
        notes = [f"accuracy {mean:.1%}, right {rows[RIGHT][1]:.1%}"]
        notes += ["all alike"] if alike else []
        notes += [f"weights apart {apart:.2g}"] if apart > 1e-6 else []
        notes += [f"{missed:.0%} not seen"] if missed > 0.005 else []
        axes.set_title(f"{name}\n{meaning}\n{'; '.join(notes)}", fontsize=11)
        axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1.03))
        axes.label_outer()
    handles = panels[0].get_legend_handles_labels()[0]
    style.legend(figure, handles)
    return figure
