"""The stages of the CSCS laboratory on connected workers, for `tfdist trajectories --stages`.

Each worker fits a line by gradient descent (by_hand.py). The parts of data-parallel training are added one by one:

    alone      each worker has its own start and its own points
    broadcast  all start from worker 0's slope and intercept: the trajectories start together, then diverge
    average    they also apply the mean of their gradients: the trajectories coincide
    shard      one set of points is divided among them: the trajectory is that of one process with all points
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import config as config_lib
from tfdist.configs.laboratory import by_hand, surface
from tfdist.configs.laboratory.by_hand import Recipe
from tfdist.tools import measure, tables
from tfdist.tools.pictures import style

TITLES = {
    "alone": "alone: own start, own points",
    "broadcast": "broadcast: one start",
    "average": "average: one gradient",
    "shard": "shard: one set of points, divided",
}
HEADER = ("stage", "distance_at_start", "distance_at_end", "slope", "intercept")
CSV_HEADER = ("stage", "worker", "step", "slope", "intercept", "loss")
# As in the laboratory: levels of the contours, the first of them labelled; the first step of the loss curves.
_LEVELS, _LABELLED, _FIRST_STEP = 50, 6, 10
Points = tuple[np.ndarray, np.ndarray]


class Line:
    """A `by_hand.Problem`: the squared error of a line to points; the weights are slope and intercept."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self.num_examples = len(x)
        self._x, self._y = x, y

    def start(self, seed: int) -> np.ndarray:
        """Returns slope and intercept from N(0, 1)."""
        return np.random.default_rng(seed).normal(size=2)

    def gradient(self, weights: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, float]:
        """See `by_hand.Problem`."""
        x = self._x[ids]
        error = weights[0] * x + weights[1] - self._y[ids]
        return np.array([np.sum(2 * error * x), np.sum(2 * error)]), float(np.sum(error**2))

    def test(self, weights: np.ndarray) -> float:
        """Returns NaN: there are no other points."""
        return float("nan")


def line(path: str) -> Line:
    """Returns the problem of the points in a file."""
    points = np.load(path)
    return Line(points["x"], points["y"])


def recipes(options: config_lib.Config, points: int, workers: int) -> list[Recipe]:
    """Returns the four stages.

    Args:
        options: batch, learning rate, steps and seed; the batch is that of a worker until the last stage divides it.
        points: of each worker.
        workers: their number.
    """
    shared = {
        "steps": options.train.steps,
        "rate": options.learning_rate.peak,
        "seed": options.seed,
        "order": "stored",
        "batch": options.data.batch_size * workers,
    }
    return [
        Recipe(name="alone", broadcast=False, average=False, **shared),
        Recipe(name="broadcast", average=False, **shared),
        Recipe(name="average", **shared),
        Recipe(name="shard", examples=points, **shared | {"batch": options.data.batch_size}),
    ]


def train_stages(
    options: config_lib.Config, points: tuple[np.ndarray, np.ndarray], *, workers: int, backend: str, workdir: Path
) -> None:
    """Trains all stages, and prints and writes tables and pictures.

    Args:
        options: of the run; its source is a line.
        points: x and y, float64 [workers * n] each: n points of each worker.
        workers: number of processes or tasks.
        backend: "processes" or "slurm".
        workdir: of the results.

    Raises:
        ValueError: the config is not usable here, or a worker failed.
    """
    own = len(points[0]) // workers
    if options.train.steps is None or options.data.batch_size % workers or own % options.data.batch_size:
        raise ValueError(
            "--stages needs config.train.steps, and a config.data.batch_size that is a multiple of the "
            f"{workers} workers and divides the {own} points. Received: steps {options.train.steps}, "
            f"batch {options.data.batch_size}"
        )
    tables.make_folder(workdir)
    np.savez(workdir / "points.npz", x=points[0], y=points[1])
    problem = {"target": "tfdist.configs.laboratory.stages:line", "path": str((workdir / "points.npz").absolute())}
    chosen = recipes(options, own, workers)
    found = by_hand.run_workers(problem, chosen, workers=workers, backend=backend, workdir=workdir / "workers")
    paths = {name: [each["weights"] for each in ranks] for name, ranks in found.items()}
    print(tables.text(HEADER, rows(paths)))
    alone = by_hand.train(Line(*(each[:own] for each in points)), chosen[-1])["weights"]
    difference = np.abs(paths["shard"][0] - alone).max()
    print(f"shard: the trajectory differs by {difference:.1g} from that of one process with all points.")
    lines = [
        (name, rank, step, *each["weights"][step].tolist(), float(each["loss"][step]))
        for name, ranks in found.items()
        for rank, each in enumerate(ranks)
        for step in range(len(each["loss"]))
    ]
    tables.write_csv(workdir / "stages.csv", CSV_HEADER, lines)
    print(workdir / "stages.csv")
    truth = tuple(options.data.source.get(name) for name in ("m", "n"))
    caption = (
        f"{workers} workers, {own:,} points each (shard: {own:,} in all), batch {options.data.batch_size:,}, learning "
        f"rate {options.learning_rate.peak:g}, {options.train.steps} steps, {measure.machine()}"
    )
    shown = tuple(each[:own] for each in points)
    print(style.save(workdir / "stages", lambda: draw_paths(paths, shown, truth, caption=caption)))
    print(style.save(workdir / "stages-loss", lambda: draw_fit(found, shown, truth, caption=caption)))


def rows(paths: Mapping[str, Sequence[np.ndarray]]) -> list[tuple]:
    """Returns rows of `HEADER`: the largest distance of a worker from worker 0, and where worker 0 ends."""
    found = []
    for name, workers in paths.items():
        start, end = (
            max(float(np.abs(each[step] - workers[0][step]).max()) for each in workers[1:]) for step in (0, -1)
        )
        found.append((name, start, end, *(round(float(value), 4) for value in workers[0][-1])))
    return found


def draw_paths(
    paths: Mapping[str, Sequence[np.ndarray]],
    points: Points,
    truth: tuple[float, float],
    *,
    caption: str,
) -> Any:
    """Returns a figure with a panel for each stage: the trajectory of each worker over the loss surface.

    Args:
        paths: stage -> of each worker float64 [steps + 1, 2], slope and intercept.
        points: x and y of worker 0, float64 [points] each.
        truth: slope and intercept of the line that the points were drawn from: the red cross.
        caption: what was trained.
    """
    figure, panels = style.figure(
        "From workers alone to data-parallel training", caption, columns=2, rows=2, size=(12.5, 9.0), share="xy"
    )
    every = [path for workers in paths.values() for path in workers]
    box = surface.limits([*every, np.array([truth])])
    grid = [np.linspace(*each, 160) for each in box]
    heights = surface.errors(*points, *grid)
    for axes, (name, workers) in zip(panels, paths.items(), strict=True):
        drawn = axes.contour(*grid, heights, levels=_LEVELS, alpha=0.6, cmap=style.SURFACE, linewidths=1.2)
        axes.clabel(drawn, drawn.levels[1 : 1 + _LABELLED], fontsize=9)
        for rank, path in enumerate(workers):
            look = {
                "linewidth": 5.0 - 3.2 * min(rank, 1),
                "alpha": 0.9 if rank else 0.6,
                "markersize": 10 - 5 * min(rank, 1),
            }
            axes.plot(*path.T, marker=".", color=style.COLORS[rank % 7], label=f"worker {rank}", **look)
            axes.plot(*path[0], "o", markersize=9, markerfacecolor="white", markeredgecolor=style.COLORS[rank % 7])
        axes.plot(*truth, "x", color="#CC0000", markersize=12, markeredgewidth=3, linestyle="none", label="true line")
        axes.set_title(TITLES[name])
        axes.grid(visible=False)
    for axes in panels[2:]:
        axes.set_xlabel("slope")
    for axes in panels[::2]:
        axes.set_ylabel("intercept")
    figure.colorbar(drawn, ax=panels, label="mean squared error", pad=0.01)
    handles = panels[0].get_legend_handles_labels()[0]
    style.legend(figure, handles)
    return figure


def draw_fit(
    found: Mapping[str, Sequence[Mapping[str, np.ndarray]]], points: Points, truth: tuple[float, float], *, caption: str
) -> Any:
    """Returns a figure: the points with the line before and after training, and the loss of each worker by step."""
    figure, (left, right) = style.figure("The data, and the loss of each stage", caption, columns=2, size=(12.5, 4.8))
    x, y = points
    left.plot(x, y, ".", color=style.GREY, alpha=0.35, markersize=5, markeredgewidth=0, label="points")
    ends = np.array([x.min(), x.max()])
    path = next(reversed(found.values()))[0]["weights"]
    for weights, color, line, label in (
        (path[0], style.COLORS[1], "--", "before training"),
        (path[-1], style.COLORS[0], "-", f"fitted: {path[-1][0]:.2f} x {path[-1][1]:+.2f}"),
    ):
        left.plot(ends, weights[0] * ends + weights[1], color=color, linestyle=line, label=label)
    left.set(title="Data and line", xlabel="x", ylabel="y")
    left.legend()
    for index, (name, workers) in enumerate(found.items()):
        for rank, each in enumerate(workers):
            steps = np.arange(len(each["loss"]))[_FIRST_STEP:]
            look = {"color": style.COLORS[index], "linestyle": "-" if rank == 0 else "--", "linewidth": 2.2}
            right.plot(steps, each["loss"][_FIRST_STEP:], **look, label=f"{name}, worker {rank}")
    right.set(title=f"Loss from step {_FIRST_STEP} on", xlabel="step", ylabel="mean squared error")
    right.legend(ncols=2)
    return figure
