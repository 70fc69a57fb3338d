"""A table of networks: `python -m tfdist models --names=ResNet50V2,ResNet152V2,VGG16`.

For each network: parameters, the memory of its weights, the GFLOP of one image; and, measured here on random images
with SGD and momentum, the memory that training takes and the time of a step. A name is a network of keras.applications,
or a dotted path such as tfdist.zoo.models:cifar_resnet, called with `num_classes` and `input_shape`.
"""

import argparse
import sys
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import specs, tool_flags
from tfdist.tools import batch_size, child_runs, tables

HEADER = ("network", "parameters", "weights_mb", "gflop_per_image", "memory_mb", "step_ms", "images_per_second")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags; --trial, the network whose steps are measured, is for child processes."""
    meaning = "Networks, separated by commas. Default: %(default)s."
    parser.add_argument("--names", type=tool_flags.names, default="ResNet50V2,ResNet152V2,VGG16", help=meaning)
    for name, default, meaning in (
        ("image_size", 224, "Height and width of the images."),
        ("num_classes", 1000, "Number of classes."),
        ("batch", 8, "Images per replica in a step."),
    ):
        meaning = f"{meaning} Default: {default}."
        parser.add_argument(f"--{name}", metavar="N", type=tool_flags.at_least(1), default=default, help=meaning)
    meaning = "Only count: measure neither memory nor steps."
    parser.add_argument("--nomeasure", dest="measure", action="store_false", help=meaning)
    parser.add_workdir("runs/models")
    parser.add_argument("--trial", help=argparse.SUPPRESS)


def model_spec(name: str, image_size: int, num_classes: int) -> dict[str, Any]:
    """Returns the spec of a network; see the module."""
    arguments = {"num_classes": num_classes, "input_shape": (image_size, image_size, 3)}
    if ":" in name:
        return {"target": name, **arguments}
    return {"target": "tfdist.zoo.models:application", "name": name, **arguments}


def count(spec: dict[str, Any]) -> tuple[int, float]:
    """Returns the parameters of a network, and the GFLOP of its forward pass for one image.

    A multiplication and an addition are two operations, as TensorFlow's profiler counts them
    (`tf.compat.v1.profiler`, from the shapes of the graph). Forward and backward together take about three times as
    much.

    Args:
        spec: of a network whose input is one image.

    Raises:
        ValueError: there is no such network, or it cannot have this input.
    """
    import keras
    import tensorflow as tf

    keras.utils.clear_session()
    model = specs.build(spec, field="--names")
    image = tf.TensorSpec([1, *spec["input_shape"]], tf.float32)
    traced = tf.function(lambda images: model(images, training=False), autograph=False).get_concrete_function(image)
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output()
    operations = profiler.profile(traced.graph, options=options.build())
    return model.count_params(), operations.total_float_ops / 1e9


def trial_config(spec: dict[str, Any]) -> config_lib.Config:
    """Returns the config for training on random images, for `batch_size.run_trial`."""
    source = {
        "target": "tfdist.zoo.sources:synthetic",
        "shape": spec["input_shape"],
        "num_classes": spec["num_classes"],
    }
    return config_lib.Config(model=spec, data=config_lib.Data(source=source))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs a few training steps of a network in another process.

    Returns:
        As `batch_size.result_of`.

    Raises:
        ValueError: the training failed for a reason other than memory; contains the end of its log.
    """
    folder = args.workdir / name.replace(":", "-")
    arguments = [f"--{flag}={getattr(args, flag)}" for flag in ("image_size", "num_classes", "batch")]
    command = [sys.executable, "-m", "tfdist", "models", f"--trial={name}", f"--workdir={folder}", *arguments]
    log = args.workdir / f"{folder.name}.log"
    found = batch_size.result_of(folder, child_runs.run_command(command, log, fresh=folder))
    if found is None:
        raise ValueError(f"The training of {name} failed; the end of {log}:\n{child_runs.end_of(log)}")
    return found


def row(name: str, counted: tuple[int, float], args: argparse.Namespace) -> tuple[Any, ...]:
    """Returns the row of a network in the table.

    Args:
        name: of the network.
        counted: of `count`.
        args: of the command.

    Raises:
        ValueError: as `measure`.
    """
    parameters, gflop = counted
    first = (name, parameters, round(4 * parameters / 2**20, 1), float(f"{gflop:.4g}"))
    if not args.measure:
        return first
    found = measure(name, args)
    if found["result"] != batch_size.FITS:
        return (*first, found["result"], None, None)
    rate = args.batch * found["replicas"] / found["step_ms"] * 1e3
    print(f"{name}: measured", flush=True)
    return (*first, found["memory_mb"], found["step_ms"], round(rate, 1))


def main(args: argparse.Namespace) -> None:
    """Prints the table, or makes one trial."""
    workdir = args.workdir
    if args.trial is not None:
        config = trial_config(model_spec(args.trial, args.image_size, args.num_classes))
        process_exit.run_and_exit(lambda: batch_size.run_trial(config, args.batch, workdir, None), saves=False)
    tables.make_folder(workdir)
    process_exit.import_tensorflow_quietly()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # Their memory is for the trials.
    header = HEADER if args.measure else HEADER[:4]
    # All networks are counted before the first is measured: a wrong name ends the command at once.
    counted = [count(model_spec(name, args.image_size, args.num_classes)) for name in args.names]
    rows = [row(name, one, args) for name, one in zip(args.names, counted, strict=True)]
    print(tables.text(header, rows))
    tables.write_csv(workdir / "models.csv", header, rows)
