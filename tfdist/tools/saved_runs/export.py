"""Writes the model of a run in the format of another library: `python -m tfdist export RUN --to=FORMAT`.

Formats: savedmodel (TensorFlow), onnx, tflite, safetensors (weights only), jax (jax.export), keras. The file is loaded
there, if the library is installed, and its outputs are compared with those of the run's model.

    python -m tfdist export runs/digits --to=onnx
    python -m tfdist export runs/digits --to=savedmodel --checkpoint=best --out=serving/digits/1
"""

import functools
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags, logging

from tfdist.cluster import process_exit
from tfdist.config.command_line import tool_words
from tfdist.report import files
from tfdist.tools import tables
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "RUN --to=FORMAT [flags]"
NAMES = ("savedmodel", "onnx", "tflite", "safetensors", "jax", "keras")
# Largest difference of outputs relative to the largest output: float32 in another order.
TOLERANCE = 1e-4


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_enum("to", None, list(NAMES), "The format.")
    flags.DEFINE_string("checkpoint", "newest", 'The weights: "newest", "best" or a step.')
    flags.DEFINE_string(
        "out", None, "The file, or folder of a SavedModel. Default: model in the workdir, with a suffix."
    )


def parse(argv: list[str]) -> list[str]:
    """Parses the command line; returns the program's name and the workdir."""
    rest = tool_words.parse_words(argv)
    if len(rest) != 2 or flags.FLAGS.to is None:
        sys.exit(f"tfdist export: give the workdir of a run, and a format: tfdist export RUN --to={'|'.join(NAMES)}")
    return rest


def plain_model(saved: SavedRun, which: str) -> Any:
    """Returns the model of a run outside of any strategy, on this process alone.

    Raises as `weights.load`, or ValueError if a launcher has started several processes.
    """
    import keras

    from tfdist import config as config_lib
    from tfdist.cluster import strategy
    from tfdist.tools.saved_runs import weights

    plan = strategy.plan(config_lib.ClusterOptions(gpus=0))
    if plan.num_workers > 1:
        raise ValueError("tfdist export is one process: start it without srun or mpirun.")
    model = weights.load(saved, strategy.connect(plan), which)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        return keras.models.load_model(path, compile=False)


def export(workdir: str) -> int:
    """Writes, compares and prints; returns the exit code."""
    from tfdist.tools.saved_runs import formats

    logging.set_verbosity(logging.WARNING)  # TensorFlow and the converters report each part of a file.
    warnings.simplefilter("ignore")
    saved, to = saved_lib.open_run(workdir), flags.FLAGS.to
    suffix, write = formats.FORMATS[to]
    model = plain_model(saved, flags.FLAGS.checkpoint)
    model = model if to in ("keras", "safetensors", "jax") else formats.in_float32(model)
    # model.keras of the workdir is never written over.
    stem = "model" if flags.FLAGS.checkpoint == "newest" and to != "keras" else f"model-{flags.FLAGS.checkpoint}"
    name = stem.replace("model", "savedmodel") if to == "savedmodel" else f"{stem}{suffix}"
    path = Path(flags.FLAGS.out or saved.workdir / name).expanduser()
    is_folder = to == "savedmodel"
    if not is_folder and path.exists() and not path.is_file():
        raise ValueError(f"--out={path} is not a file: choose another one.")
    if to == "keras" and path.suffix not in (".keras", ".h5"):
        raise ValueError(f"--out={path} must end in .keras, by which Keras knows the format.")
    tables.make_folder(path if is_folder else path.parent)
    inputs = formats.example_inputs(model)
    expected = formats.outputs_of(model, inputs)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        written = path if is_folder else Path(folder, path.name)
        found = write(model, written, inputs)
        print(f"{path}: {', '.join(f'{each.name} {each.dtype} {_shape(each)}' for each in model.inputs)}")
        report(to, expected, found)
        if not is_folder:  # Until here, an older file is unchanged.
            files.move_complete(written, path.resolve())
    if to == "keras":
        for backend in ("jax", "torch"):
            if formats.is_installed(backend):
                report(f"keras with the backend {backend}", expected, formats.by_other_backend(backend, model, inputs))
            else:
                print(f"not tried with the backend {backend}, which is not installed")
    return 0


def report(name: str, expected: np.ndarray, found: Any) -> None:
    """Prints how far outputs, or their largest difference, are from the expected ones; raises ValueError if too far."""
    if found is None:
        print(f"not compared: the library of {name} is not installed")
        return
    difference = found if isinstance(found, float) else float(np.abs(found.astype(np.float64) - expected).max())
    largest = float(np.abs(expected).max())
    text = f"the outputs of {name} differ by {difference:.2g} at most; the largest is {largest:.3g}"
    if not difference <= TOLERANCE * max(1.0, largest):
        raise ValueError(f"{text}: do not use this file.")
    print(text)


def _shape(spec: Any) -> str:
    return f"[{', '.join('n' if size is None else str(size) for size in spec.shape)}]"


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(functools.partial(export, argv[1]), saves=False)
