"""Plots trajectories over a line's loss surface: `python -m tfdist trajectories --config=configs/line.py`.

Trains the config for each batch size on each number of replicas; its objective must report "m" and "n" in every step,
as `tfdist.configs.networks.classic:line_error` does. Writes trajectories.csv and a picture into the workdir, and prints
the largest distance between the trajectories of one batch size: the batches are the same, so it is rounding only.

`--stages` trains on workers alone, then adds broadcast, average and shard, as the CSCS laboratory does; use it with
configs/courses/cscs_line.py, which has the laboratory's data. `--linear_scaling` trains with k times the batch size and
the learning rate, for each k.
"""

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdist import config
from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.configs.laboratory import surface as pictures
from tfdist.tools import child_runs, tables
from tfdist.tools.pictures import style
from tfdist.training import features
from tfdist.training.step import learning_rate

# (batch size, replicas) -> float64 [steps, 2], the (m, n) before each step.
Trajectories = dict[tuple[int, int], np.ndarray]
HEADER = ("batch_size", "replicas", "step", "m", "n")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    numbers, default = tool_flags.numbers, "Default: %(default)s."
    meaning = f"The global batch sizes. {default}"
    parser.add_argument("--batches", metavar="N,N,...", type=numbers, default="1,8,64", help=meaning)
    meaning = f"The numbers of replicas. {default}"
    parser.add_argument("--replicas", metavar="N,N,...", type=numbers, default="1,2", help=meaning)
    child_runs.add_by(parser)
    meaning = "Instead, the stages of the CSCS laboratory: workers alone, then broadcast, average, shard."
    parser.add_argument("--stages", action="store_true", help=meaning)
    meaning = f"The number of workers of --stages. {default}"
    parser.add_argument("--workers", metavar="N", type=tool_flags.at_least(2), default=2, help=meaning)
    meaning = "Instead, these multiples k of batch and rate (Goyal's rule), as 1,4,16."
    parser.add_argument("--linear_scaling", metavar="K,K,...", type=numbers, help=meaning)
    parser.add_workdir("runs/NAME-trajectories")


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
    features.validate_config(options)
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


def run_stages(args: argparse.Namespace, options: config.Config) -> None:
    """Runs the stages of the CSCS laboratory; see `stages`."""
    from tfdist.configs.laboratory import stages

    source, workers = options.data.source, args.workers
    if not {"m", "n", "num_examples"} <= source.keys():
        raise ValueError(
            "--stages draws the points of each worker: config.data.source must be a line with m, n and num_examples, "
            f"as in configs/courses/cscs_line.py. Received: {source}"
        )
    backend = child_runs.choose_backend(args.by, os.environ)
    if backend == "devices":
        raise ValueError("--stages needs workers: give --by=processes or --by=slurm.")
    of_all = dataclasses.replace(options.data, source=source | {"num_examples": workers * source["num_examples"]})
    points = read_points(dataclasses.replace(options, data=of_all))
    stages.train_stages(options, points, workers=workers, backend=backend, workdir=args.workdir)


def run_multiples(args: argparse.Namespace, options: config.Config) -> None:
    """Trains with k times the batch and the rate, for each k of --linear_scaling; see `linear_scaling`."""
    from tfdist.configs.laboratory import linear_scaling

    workdir, multiples = args.workdir, sorted({1, *args.linear_scaling})
    batch, steps, rate = options.data.batch_size, options.train.steps, options.learning_rate.peak
    check_objective(options)
    x, y = read_points(options)
    linear_scaling.check(multiples, batch=batch, steps=steps, examples=len(x))
    backend = child_runs.choose_backend(args.by, os.environ)
    found = {}
    for k in multiples:
        print(f"{steps // k} steps of {k * batch} examples, learning rate {k * rate:g} ...", flush=True)
        scaled = [f"--config.learning_rate.peak={k * rate}", f"--config.train.steps={steps // k}"]
        arguments = [*args.config_words, *scaled]
        found[k] = run_one(arguments, k * batch, 1, backend=backend, to=workdir / f"times-{k}")
    rows = linear_scaling.compare(found, batch=batch, rate=rate)
    tables.write_csv(workdir / "linear_scaling.csv", linear_scaling.HEADER, rows)
    print(tables.text(linear_scaling.HEADER, rows))
    print(workdir / "linear_scaling.csv")
    paths = {(k * batch, 1): points for k, points in found.items()}
    caption = f"{len(x):,} points; each batch with k times the rate, from k = 1 with {rate:g}"
    print(style.save(workdir / "linear_scaling", lambda: pictures.draw(paths, x, y, caption=caption)))


def main(args: argparse.Namespace) -> None:
    """Runs the trainings that the flags name, and writes the results."""
    workdir, options = args.workdir, learning_rate.resolve(args.config)
    if args.stages:
        run_stages(args, options)
        return
    if args.linear_scaling:
        run_multiples(args, options)
        return
    backend = child_runs.choose_backend(args.by, os.environ)
    check_objective(args.config)
    trajectories: Trajectories = {}
    skipped = []
    for batch in args.batches:
        for replicas in args.replicas:
            if batch % replicas:
                skipped.append(f"batch {batch} is not divisible by {replicas} replicas: skipped")
                print(skipped[-1])
                continue
            print(f"batch {batch} on {replicas} replica(s) by {backend} ...", flush=True)
            to = workdir / f"batch-{batch}-replicas-{replicas}"
            trajectories[batch, replicas] = run_one(args.config_words, batch, replicas, backend=backend, to=to)
    lines = [(*key, step, *point) for key, steps in trajectories.items() for step, point in enumerate(steps.tolist())]
    tables.write_csv(workdir / "trajectories.csv", HEADER, lines)
    print(tables.text(("batch_size", "replicas", "distance"), distance(trajectories)))
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
