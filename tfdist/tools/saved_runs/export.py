"""Writes the model of a run for another library: `python -m tfdist export RUN --format=FORMAT [OUT]`.

The formats are of Keras' `Model.export`: a SavedModel of TensorFlow, ONNX, and LiteRT (TensorFlow Lite). OUT is the
file, or the folder of a SavedModel; by default it is in the workdir.

    python -m tfdist export runs/digits --format=onnx
    python -m tfdist export runs/digits --format=tf_saved_model --checkpoint=best serving/digits/1
"""

import functools
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from absl import flags, logging

from tfdist.cluster import process_exit
from tfdist.config import removed
from tfdist.config.command_line import tool_words
from tfdist.tools import tables
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

# Format -> the name in the workdir.
NAMES = {"tf_saved_model": "savedmodel", "onnx": "model.onnx", "litert": "model.tflite"}
USAGE = f"RUN --format={'|'.join(NAMES)} [OUT] [flags]"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("format", None, f"The format: {', '.join(NAMES)}.")
    flags.DEFINE_string("checkpoint", "newest", 'The weights: "newest", "best" or a step.')


def parse(argv: list[str]) -> list[str]:
    """Parses the command line; returns the program's name, the workdir and OUT, if it is given."""
    wanted = f"tfdist export: give the workdir of a run, and a format: tfdist export {USAGE}"
    rest = tool_words.parse_words(argv, least=1, most=2, wanted=wanted)
    if flags.FLAGS.format not in NAMES:
        sys.exit(removed.of_flag(f"format={flags.FLAGS.format}") or wanted)
    return rest


def plain_model(saved: SavedRun, which: str) -> Any:
    """Returns the model of a run in float32, outside of any strategy, on this process alone.

    Raises as `weights.load`, or ValueError if a launcher has started several processes.
    """
    import keras

    from tfdist import config as config_lib
    from tfdist.cluster import strategy
    from tfdist.tools.saved_runs import weights

    plan = strategy.plan(config_lib.ClusterOptions(gpus=0))
    if plan.num_workers > 1:
        raise ValueError("tfdist export is one process: start it without srun or mpirun.")
    made = weights.load(saved, strategy.connect(plan), which)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder, "model.keras"))
        model = keras.models.load_model(Path(folder, "model.keras"), compile=False)
    text = json.dumps(keras.saving.serialize_keras_object(model))
    plain = re.sub('"mixed_b?float16"', '"float32"', text)
    if plain == text:
        return model
    copy = keras.saving.deserialize_keras_object(json.loads(plain))
    copy.set_weights(model.get_weights())
    return copy


def export(workdir: str, out: str | None = None) -> int:
    """Writes the file, prints its path and the model's inputs, and returns the exit code.

    Raises:
        ValueError: there is no such checkpoint, OUT cannot be used, or Keras cannot write the format here.
    """
    import keras

    logging.set_verbosity(logging.WARNING)  # TensorFlow and the converters report each part of a file.
    warnings.simplefilter("ignore")
    saved, form, which = saved_lib.open_run(workdir), flags.FLAGS.format, flags.FLAGS.checkpoint
    name = Path(NAMES[form])
    default = saved.workdir / (name if which == "newest" else f"{name.stem}-{which}{name.suffix}")
    path = Path(out or default).expanduser()
    if form == "litert" and path.suffix != name.suffix:
        raise ValueError(f"{path} must end in {name.suffix}.")
    tables.make_folder(path if form == "tf_saved_model" else path.parent)
    model = plain_model(saved, which)
    try:
        # Without a signature, Keras does not export to ONNX what was not called; a Sequential model has no `input`.
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        model.export(path, format=form, verbose=False, input_signature=[inputs])
    except ImportError as error:
        raise ValueError(f"--format={form}: {error}, or pip install 'tfdist[export]'.") from None
    except ValueError as error:
        if str(error).startswith("Unrecognized format"):
            raise ValueError(f"--format={form} needs Keras 3.13 or later. Received: {keras.__version__}") from None
        raise
    print(f"{path}: {', '.join(f'{each.name} {each.dtype} {_shape(each)}' for each in model.inputs)}")
    return 0


def _shape(spec: Any) -> str:
    return f"[{', '.join('n' if size is None else str(size) for size in spec.shape)}]"


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(functools.partial(export, *argv[1:]), saves=False)
