"""Plots trajectories over a line's loss surface: `python -m tfdist trajectories --config=configs/line.py`.

Trains the config for each batch size on each number of replicas; its objective must report "m" and "n" in every step,
as `tfdist.zoo.classic:line_error` does. Writes trajectories.csv and trajectories.png into the workdir, and prints the
largest distance between the trajectories of one batch size: the batches are the same, so it is rounding only.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import flags

from tfdist import config
from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.tools import child_runs, scaling, tables

# (batch size, replicas) -> float64 [steps, 2], the (m, n) before each step.
Trajectories = dict[tuple[int, int], np.ndarray]
HEADER = ("batch_size", "replicas", "step", "m", "n")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_list("batches", ["1", "8", "64"], "The global batch sizes.")
    flags.DEFINE_list("replicas", ["1", "2"], "The numbers of replicas, as 1,2,4.")
    child_runs.define_by()
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-trajectories for NAME.py.")


def run_one(arguments: Sequence[str], batch: int, replicas: int, *, backend: str, to: Path) -> np.ndarray:
    """Trains once in the folder `to`; returns (m, n) before each step, float64 [steps, 2].

    Raises:
        ValueError: the training failed, or does not report "m" and "n" in every step.
    """
    every = ["--config.report.every.steps=1", f"--config.data.batch_size={batch}"]
    child_runs.train([*arguments, *every], replicas=replicas, backend=backend, workdir=to, log=to.with_suffix(".log"))
    lines = child_runs.reports(to)
    if not all("m" in line and "n" in line for line in lines):
        raise ValueError(
            'config.objective must return "m" and "n" in addition to the loss, as tfdist.zoo.classic:line_error. '
            f"Received: {sorted(lines[0])}"
        )
    return np.array([(line["m"], line["n"]) for line in lines])


def surface(options: config.Config, m: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The mean squared error over the training split on a grid, float64 [len(n), len(m)]."""
    process_exit.import_tensorflow_quietly()
    from tfdist.training import setup

    source = setup.open_source(options, options.data.train_split)
    points = source.read(np.arange(len(source)))
    x, y = (np.asarray(points[name], np.float64)[:, 0] for name in ("x", "y"))
    errors = m[np.newaxis, :, np.newaxis] * x + n[:, np.newaxis, np.newaxis] - y
    return np.mean(errors**2, axis=-1)


def draw(path: Path, trajectories: Trajectories, options: config.Config) -> bool:
    """Plots one panel for each batch size; returns False if matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    every = np.concatenate(list(trajectories.values()))
    low, high = every.min(axis=0), every.max(axis=0)
    edge = 0.25 * (high - low) + 0.1
    grid = [np.linspace(low[i] - edge[i], high[i] + edge[i], 80) for i in range(2)]
    heights = surface(options, *grid)
    batches = sorted({batch for batch, _ in trajectories})
    figure, panels = pyplot.subplots(
        1, len(batches), figsize=(4.2 * len(batches), 4), layout="constrained", sharey=True
    )
    for axes, batch in zip(np.atleast_1d(panels), batches, strict=True):
        axes.contourf(*grid, np.log10(heights + 1e-3), levels=24, cmap="Greys", alpha=0.7)
        for place, ((_, replicas), points) in enumerate(item for item in trajectories.items() if item[0][0] == batch):
            # Equal trajectories cover each other.
            style = ("-o", "--x", ":+")[place % 3]
            axes.plot(*points.T, style, markersize=4 + 2 * place, linewidth=1, label=f"{replicas} replica(s)")
        axes.set(title=f"batch of {batch}", xlabel="m", ylabel="n" if batch == batches[0] else "")
        axes.legend()
    figure.suptitle("loss surface (logarithmic) and trajectories")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def distance(trajectories: Mapping[tuple[int, int], np.ndarray]) -> list[tuple[int, int, float]]:
    """Compares the trajectories of each batch size.

    Returns:
        (batch size, replicas, largest distance from the trajectory of that batch size on the fewest replicas).
    """
    found = []
    for (batch, replicas), points in trajectories.items():
        first = trajectories[min(key for key in trajectories if key[0] == batch)]
        found.append((batch, replicas, float(np.abs(points - first).max())))
    return found


def study(argv: list[str]) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-trajectories").expanduser()
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    numbers = scaling.parse_replicas(flags.FLAGS.replicas)
    trajectories: Trajectories = {}
    for batch in scaling.parse_replicas(flags.FLAGS.batches):
        for replicas in numbers:
            if batch % replicas:
                print(f"batch {batch} is not divisible by {replicas} replicas: skipped")
                continue
            print(f"batch {batch} on {replicas} replica(s) by {backend} ...", flush=True)
            to = workdir / f"batch-{batch}-replicas-{replicas}"
            trajectories[batch, replicas] = run_one(
                config_flags.config_arguments(argv), batch, replicas, backend=backend, to=to
            )
    lines = [(*key, step, *point) for key, steps in trajectories.items() for step, point in enumerate(steps.tolist())]
    tables.write_csv(workdir / "trajectories.csv", HEADER, lines)
    print(tables.text(("batch_size", "replicas", "distance"), distance(trajectories)))
    drawn = draw(workdir / "trajectories.png", trajectories, flags.FLAGS["config"].value)
    picture = "trajectories.png" if drawn else "no plot: pip install matplotlib, and run the command again"
    print(f"{workdir / 'trajectories.csv'}, {picture}")


def main(argv: list[str]) -> int:
    """Runs the tool after its flags are parsed; an error of the user ends it with one message."""
    with config_flags.one_message("tfdist trajectories"):
        study(sys.argv)
    return 0
