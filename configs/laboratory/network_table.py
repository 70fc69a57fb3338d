"""A table over networks: `python -m tfdist models --names=ResNet50V2,ResNet152V2,VGG16`.

For each network: parameters, the memory of its weights, the GFLOP of one image, and, measured here with plain SGD and
momentum on random images, the memory of a training and the time of a step. A name is a network of keras.applications,
or a dotted path such as tfdist.zoo.models:cifar_resnet, called with `num_classes` and `input_shape`.
"""

import sys
from pathlib import Path
from typing import Any

from absl import flags

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import specs
from tfdist.tools import batch_size, child_runs, tables

HEADER = ("network", "parameters", "weights_mb", "gflop_per_image", "memory_mb", "step_ms", "images_per_second")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_list("names", ["ResNet50V2", "ResNet152V2", "VGG16"], "Networks, separated by commas.")
    flags.DEFINE_integer("image_size", 224, "Height and width of the images.", lower_bound=1)
    flags.DEFINE_integer("num_classes", 1000, "Number of classes.", lower_bound=1)
    flags.DEFINE_integer("batch", 8, "Images per replica in a step.", lower_bound=1)
    flags.DEFINE_bool("measure", True, "Measure memory and steps; otherwise only count.")
    flags.DEFINE_string("workdir", "runs/models", "Directory of the results.")
    flags.DEFINE_string("trial", None, "Internal: the network whose steps are measured.")


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
    """Returns the config of a training on random images, for `batch_size.run_trial`."""
    source = {
        "target": "tfdist.zoo.sources:synthetic",
        "shape": spec["input_shape"],
        "num_classes": spec["num_classes"],
    }
    return config_lib.Config(model=spec, data=config_lib.Data(source=source))


def measure(name: str, workdir: Path) -> dict[str, Any]:
    """Makes a few training steps of a network in processes of their own.

    Returns:
        As `batch_size.combine`.

    Raises:
        ValueError: the training failed for another reason than memory; contains the end of its log.
    """
    folder = workdir / name.replace(":", "-")
    values = {name: flags.FLAGS[name].value for name in ("image_size", "num_classes", "batch")}
    arguments = [f"--{flag}={value}" for flag, value in values.items()]
    command = [sys.executable, "-m", "tfdist", "models", f"--trial={name}", f"--workdir={folder}", *arguments]
    log = workdir / f"{folder.name}.log"
    found = batch_size.combine(folder, child_runs.run_command(command, log, fresh=folder))
    if found is None:
        raise ValueError(f"The training of {name} failed; the end of {log}:\n{child_runs.end_of(log)}")
    return found


def row(name: str, counted: tuple[int, float], workdir: Path) -> tuple[Any, ...]:
    """Returns the row of a network in the table.

    Args:
        name: of the network.
        counted: of `count`.
        workdir: of the results.

    Raises:
        ValueError: as `measure`.
    """
    parameters, gflop = counted
    first = (name, parameters, round(4 * parameters / 2**20, 1), float(f"{gflop:.4g}"))
    if not flags.FLAGS.measure:
        return first
    found = measure(name, workdir)
    if found["result"] != batch_size.FITS:
        return (*first, found["result"], None, None)
    rate = flags.FLAGS.batch * found["replicas"] / found["step_ms"] * 1e3
    print(f"{name}: measured", flush=True)
    return (*first, found["memory_mb"], found["step_ms"], round(rate, 1))


def main(argv: list[str]) -> None:
    """Prints the table, or makes one trial."""
    config_flags.flags_only(argv[1:])
    options = flags.FLAGS
    workdir = Path(options.workdir).expanduser()
    if options.trial is not None:
        config = trial_config(model_spec(options.trial, options.image_size, options.num_classes))
        process_exit.run_and_exit(lambda: batch_size.run_trial(config, options.batch, workdir, None), saves=False)
    tables.make_folder(workdir)
    process_exit.import_tensorflow_quietly()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # Their memory is for the trials.
    header = HEADER if options.measure else HEADER[:4]
    # All networks before the first is measured: a wrong name ends the command at once.
    counted = [count(model_spec(name, options.image_size, options.num_classes)) for name in options.names]
    rows = [row(name, one, workdir) for name, one in zip(options.names, counted, strict=True)]
    print(tables.text(header, rows))
    tables.write_csv(workdir / "models.csv", header, rows)
