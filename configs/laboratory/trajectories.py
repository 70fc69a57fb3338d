"""Plots trajectories over a line's loss surface: `python -m tfdist trajectories --config=configs/line.py`.

Trains the config for each batch size on each number of replicas; its objective must report "m" and "n" in every step,
as `tfdist.configs.networks.classic:line_error` does. Writes trajectories.csv and a picture into the workdir, and prints
the largest distance between the trajectories of one batch size: the batches are the same, so it is rounding only.

`--stages` trains on workers alone, then with broadcast, average and shard, as the CSCS laboratory does: with
configs/courses/cscs_line.py, whose data it has. `--linear_scaling` trains with k times batch and rate, for each k.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import flags

from tfdist import config
from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import learning_rate
from tfdist.config.command_line import words
from tfdist.configs.laboratory import surface as pictures
from tfdist.tools import child_runs, scaling, tables
from tfdist.tools.pictures import style

# (batch size, replicas) -> float64 [steps, 2], the (m, n) before each step.
Trajectories = dict[tuple[int, int], np.ndarray]
HEADER = ("batch_size", "replicas", "step", "m", "n")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_list("batches", ["1", "8", "64"], "The global batch sizes.")
    flags.DEFINE_list("replicas", ["1", "2"], "The numbers of replicas, as 1,2,4.")
    child_runs.define_by()
    flags.DEFINE_bool(
        "stages", False, "Instead, the stages of the CSCS laboratory: workers alone, then broadcast, average, shard."
    )
    flags.DEFINE_integer("workers", 2, "The number of workers of --stages.", lower_bound=2)
    flags.DEFINE_list("linear_scaling", None, "Instead, these multiples k of batch and rate (Goyal's rule), as 1,4,16.")
    flags.DEFINE_string("workdir", None, "Directory of the results. Default: runs/NAME-trajectories for NAME.py.")


def run_one(arguments: Sequence[str], batch: int, replicas: int, *, backend: str, to: Path) -> np.ndarray:
    """Trains once in the folder `to`; returns (m, n) before each step, float64 [steps, 2].

    Raises:
        ValueError: the training failed.
    """
    every = ["--config.report.every.steps=1", f"--config.data.batch_size={batch}"]
    child_runs.train([*arguments, *every], replicas=replicas, backend=backend, workdir=to, log=to.with_suffix(".log"))
    lines = child_runs.reports(to)
    return np.array([(line["m"], line["n"]) for line in lines])


def check_objective(options: config.Config) -> None:
    """Checks that the objective returns "m" and "n", on two blank examples on the CPU.

    Raises:
        ValueError: it does not, or the config cannot be used.
    """
    process_exit.import_tensorflow_quietly()
    import tensorflow as tf

    from tfdist.config import specs
    from tfdist.data import description, stream
    from tfdist.data import inputs as inputs_lib

    tf.config.set_visible_devices([], "GPU")  # The trainings, which are other processes, need all of their memory.
    inputs = inputs_lib.open_inputs(options)
    batches = stream.training(
        inputs.train_source, inputs.prepare, stream.ReplicaShard(), global_batch=1, seed=0, shuffle=False
    )
    spec = description.element_spec(batches(0, 1))
    blank = {name: tf.zeros([2, *one.shape[1:]], one.dtype) for name, one in spec.items()}
    model = specs.build(options.model, field="config.model")
    names = list(inputs.objective(model, blank, training=False))
    if not {"m", "n"} <= set(names):
        raise ValueError(
            'config.objective must return "m" and "n", the slope and intercept of a line, in addition to the loss, as '
            f"tfdist.configs.networks.classic:line_error in configs/line.py does. Received: {', '.join(names)}"
        )


def read_points(options: config.Config) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y of the training points, float64 [points] each."""
    process_exit.import_tensorflow_quietly()
    from tfdist.data import inputs as inputs_lib

    source = inputs_lib.open_source(options, options.data.train_split)
    points = source.read(np.arange(len(source)))
    return tuple(np.asarray(points[name], np.float64)[:, 0] for name in ("x", "y"))


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


def run_stages(workdir: Path, options: config.Config) -> None:
    """Runs the stages of the CSCS laboratory; see `stages`."""
    from tfdist.configs.laboratory import stages

    source, workers = options.data.source, flags.FLAGS.workers
    if not {"m", "n", "num_examples"} <= source.keys():
        raise ValueError(
            "--stages draws the points of each worker: config.data.source must be a line with m, n and num_examples, "
            f"as in configs/courses/cscs_line.py. Received: {source}"
        )
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    if backend == "devices":
        raise ValueError("--stages needs workers: give --by=processes or --by=slurm.")
    of_all = dataclasses.replace(options.data, source=source | {"num_examples": workers * source["num_examples"]})
    points = read_points(dataclasses.replace(options, data=of_all))
    stages.train_stages(options, points, workers=workers, backend=backend, workdir=workdir)


def run_multiples(workdir: Path, options: config.Config) -> None:
    """Trains with k times the batch and the rate, for each k of --linear_scaling; see `linear_scaling`."""
    from tfdist.configs.laboratory import linear_scaling

    multiples = sorted({1, *scaling.parse_numbers("linear_scaling")})
    batch, steps, rate = options.data.batch_size, options.train.steps, options.learning_rate.peak
    check_objective(options)
    x, y = read_points(options)
    linear_scaling.check(multiples, batch=batch, steps=steps, examples=len(x))
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    found = {}
    for k in multiples:
        print(f"{steps // k} steps of {k * batch} examples, learning rate {k * rate:g} ...", flush=True)
        scaled = [f"--config.learning_rate.peak={k * rate}", f"--config.train.steps={steps // k}"]
        arguments = [*words.config_arguments(sys.argv[1:]), *scaled]
        found[k] = run_one(arguments, k * batch, 1, backend=backend, to=workdir / f"times-{k}")
    rows = linear_scaling.compare(found, batch=batch, rate=rate)
    tables.write_csv(workdir / "linear_scaling.csv", linear_scaling.HEADER, rows)
    print(tables.text(linear_scaling.HEADER, rows))
    print(workdir / "linear_scaling.csv")
    paths = {(k * batch, 1): points for k, points in found.items()}
    caption = f"{len(x):,} points; each batch with k times the rate, from k = 1 with {rate:g}"
    print(style.save(workdir / "linear_scaling", lambda: pictures.draw(paths, x, y, caption=caption)))


def main(argv: list[str]) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    del argv
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}-trajectories").expanduser()
    if flags.FLAGS.stages:
        run_stages(workdir, learning_rate.resolve(flags.FLAGS["config"].value))
        return
    if flags.FLAGS.linear_scaling:
        run_multiples(workdir, learning_rate.resolve(flags.FLAGS["config"].value))
        return
    backend = child_runs.choose_backend(flags.FLAGS.by, os.environ)
    numbers = scaling.parse_numbers("replicas")
    check_objective(flags.FLAGS["config"].value)
    trajectories: Trajectories = {}
    skipped = []
    for batch in scaling.parse_numbers("batches"):
        for replicas in numbers:
            if batch % replicas:
                skipped.append(f"batch {batch} is not divisible by {replicas} replicas: skipped")
                print(skipped[-1])
                continue
            print(f"batch {batch} on {replicas} replica(s) by {backend} ...", flush=True)
            to = workdir / f"batch-{batch}-replicas-{replicas}"
            trajectories[batch, replicas] = run_one(
                words.config_arguments(sys.argv[1:]), batch, replicas, backend=backend, to=to
            )
    lines = [(*key, step, *point) for key, steps in trajectories.items() for step, point in enumerate(steps.tolist())]
    tables.write_csv(workdir / "trajectories.csv", HEADER, lines)
    print(tables.text(("batch_size", "replicas", "distance"), distance(trajectories)))
    options = learning_rate.resolve(flags.FLAGS["config"].value)
    x, y = read_points(options)
    caption = f"{len(x):,} points, learning rate {options.learning_rate.peak:g}"
    if len({replicas for _, replicas in trajectories}) > 1:
        caption += f", largest distance between numbers of replicas {max(row[2] for row in distance(trajectories)):.1g}"
    print(workdir / "trajectories.csv")
    print(
        style.save(
            workdir / "trajectories",
            lambda: pictures.draw(trajectories, x, y, caption=caption, skipped="; ".join(skipped)),
        )
    )
