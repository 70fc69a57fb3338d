"""Writes the model of a run for another library: `python -m tfdist export RUN --format=FORMAT [OUT]`.

The formats are those of Keras' `Model.export`, a SavedModel of TensorFlow, ONNX, OpenVINO and LiteRT (TensorFlow Lite),
and Keras' own file. OUT is the file, or the folder of a SavedModel; by default it is in the workdir.

    python -m tfdist export runs/digits --format=keras --checkpoint=best
    python -m tfdist export runs/digits --format=onnx
    python -m tfdist export runs/digits --format=tf_saved_model --checkpoint=best serving/digits/1
"""

import argparse
import functools
import re
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

from absl import logging

from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.tools import tables
from tfdist.tools.saved_runs import predict
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

# Format -> the name in the workdir.
NAMES = {
    "tf_saved_model": "savedmodel",
    "onnx": "model.onnx",
    "openvino": "model.xml",
    "litert": "model.tflite",
    "keras": "exported.keras",
}
_NEEDS = {"onnx": "'tfdist[export]'", "openvino": "openvino"}
USAGE = f"RUN --format={'|'.join(NAMES)} [OUT] [flags]"


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("run", metavar="RUN", help="The workdir of a run.")
    parser.add_argument("out", metavar="OUT", nargs="?", type=tool_flags.path, help="Default: in the workdir.")
    parser.add_argument("--format", choices=[*NAMES], help="The format.")
    predict.add_checkpoint(parser)


def plain_model(saved: SavedRun, which: str) -> Any:
    """Returns the model of a run in float32, outside of any strategy, on this process alone.

    It is saved and loaded, because `set_weights` copies neither the statistics that `Normalization` computes from its
    weights nor the vocabulary of a lookup.

    Raises as `model.load`, or ValueError if a launcher has started several processes.
    """
    import keras

    from tfdist import config as config_lib
    from tfdist.cluster import strategy
    from tfdist.tools.saved_runs import model as model_lib

    plan = strategy.plan(config_lib.ClusterOptions(gpus=0))
    if plan.num_workers > 1:
        raise ValueError("tfdist export is one process: start it without srun or mpirun.")
    made = model_lib.load(saved, strategy.connect(plan), which)
    with tempfile.TemporaryDirectory() as folder:
        saved_model, plain = Path(folder) / "saved.keras", Path(folder) / "plain.keras"
        made.save(saved_model)
        with zipfile.ZipFile(saved_model) as read, zipfile.ZipFile(plain, "w") as written:
            for name in read.namelist():
                content = read.read(name)
                if name == "config.json":
                    content = re.sub(b'"mixed_b?float16"', b'"float32"', content)
                written.writestr(name, content)
        return keras.saving.load_model(plain, compile=False)


def export(args: argparse.Namespace) -> int:
    """Writes the file, prints its path and the model's inputs, and returns the exit code.

    Raises ValueError if there is no such checkpoint, or Keras cannot write the format here.
    """
    import keras

    if not args.format:
        raise ValueError(f"give a format: tfdist export {USAGE}")
    logging.set_verbosity(logging.WARNING)  # TensorFlow and the converters report each part of a file.
    warnings.simplefilter("ignore")
    saved, name = saved_lib.open_run(args.run), Path(NAMES[args.format])
    if args.checkpoint != "newest":
        name = name.with_stem(f"{name.stem}-{args.checkpoint}")
    path = args.out or saved.workdir / name
    if name.suffix and path.suffix != name.suffix:
        raise ValueError(f"{path} must end in {name.suffix}.")
    tables.make_folder(path.parent if name.suffix else path)
    model = plain_model(saved, args.checkpoint)
    try:
        if args.format == "keras":
            model.save(path)
        else:
            # Without a signature, Keras cannot export a model to ONNX before a call; a Sequential model has no `input`.
            inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
            model.export(str(path), format=args.format, verbose=False, input_signature=[inputs])
    except ImportError as error:
        raise ValueError(f"--format={args.format}: {error}: pip install {_NEEDS.get(args.format, 'it')}") from None
    except ValueError as error:
        raise ValueError(f"--format={args.format}: Keras {keras.__version__}: {error}") from None
    print(f"{path}: {', '.join(f'{each.name} {each.dtype} {_shape(each)}' for each in model.inputs)}")
    return 0


def _shape(spec: Any) -> str:
    return f"[{', '.join('n' if size is None else str(size) for size in spec.shape)}]"


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(export, args), saves=False)
