"""The files that `tfdist new` writes: config, README, batch file, script."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tfdist.tools.start import networks
from tfdist.tools.start.look import Data

# Optimizer steps of the first run.
_STEPS, _MOST_EPOCHS, _LEAST_EPOCHS = 300, 20, 5

_CONFIG = '''"""Trains on {about}.

    tfdist train {file}

`tfdist train {file} --help` lists all fields, with their meaning.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        # A function in {module}.py and its arguments.
        model={model},
{adapt}        data=c.Data(
            source={source},
{prepare}            train_split="{train_split}",  # {training:,} examples.
            evaluation_split="{evaluation_split}",  # {evaluation:,} examples.
            batch_size={batch_size},  # Of a step, on all devices together.
        ),
        objective={objective},
        optimizer={{"target": "keras.optimizers:Adam", "learning_rate": 0.001}},
        train=c.Train(epochs={epochs}),
        checkpoint=c.Checkpoint(best_metric="{metric}", best_mode="{mode}"),
    )
'''
_README = """# {name}

Trains on {about}. Made by `tfdist new`. In this directory:

    tfdist train {name}.py                 # trains; again: resumes, or says that it is finished
    tfdist train runs/{name} --epochs={longer}    # trains longer
    tfdist evaluate runs/{name} --checkpoint=best
    tfdist predict runs/{name} FILES       # predicts other data, such as the files from which it was trained
    tfdist inspect runs/{name}             # shows what it gets wrong
{job}
`{name}.py` is the config, `{module}.py` the network. `tfdist docs` lists the pages.
"""
_SCRIPT_README = """# {name}

A Keras script, which tfdist runs on any machines. Made by `tfdist new`. In this directory:

    python {name}.py                              # Keras alone
    tfdist run --workdir=runs/{name} {name}.py       # all devices of this machine; again: resumes
    tfdist launch --workers=2 -- -m tfdist.run --workdir=runs/two {name}.py    # two workers on this machine
{job}
Put your own data and model into the script. `tfdist docs scripts` says what a script may do.
"""
_SCRIPT = '''"""A Keras script: handwritten digits, to be replaced by data of yours.

    tfdist run --workdir=runs/{name} {name}.py
"""

from pathlib import Path

import tfdist  # Before Keras: it hides TensorFlow's own lines.

import keras
import numpy as np

with np.load(Path(tfdist.__file__).parent / "zoo" / "data" / "digits.npz") as file:
    images, labels = file["image"] / 16.0, file["label"]
images = images.reshape(len(images), 8, 8, 1).astype("float32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, validation_split=0.2, batch_size=64, epochs=5)
'''
_JOB = """#!/bin/bash
# Trains on Slurm: sbatch job.sbatch. More nodes: sbatch --nodes=2 job.sbatch
#SBATCH --job-name={name}
#SBATCH --nodes=1
# One task per GPU, or one per node without GPUs.
#SBATCH --ntasks-per-node={tasks}
{gpus}#SBATCH --cpus-per-task={cpus}
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# 120 s before the time is up the run saves, and the job is requeued. A job of less than 5 minutes: USR1@30.
#SBATCH --signal=USR1@120
#SBATCH --requeue

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
exec srun --wait=60 {python} -m {command}
"""


def of_data(name: str, data: Data) -> dict[str, str]:
    """Returns file name -> content of the directory for `data`; `name` is an identifier of Python."""
    module = f"{name}_model"
    model = {"target": f"{module}:network", **({"num_classes": data.classes} if data.classes else {})}
    size = _batch_size(data)
    steps = max(1, len(data.training) // size)
    epochs = min(_MOST_EPOCHS, max(_LEAST_EPOCHS, round(_STEPS / steps)))
    identity = '            prepare={"target": "tfdist.zoo.prepare:identity"},\n'
    adapt = f'        adapt={{"target": "{module}:adapt"}},\n'
    metric, mode = ("accuracy", "max") if data.classes else ("mae", "min")
    if data.kind == "text":
        metric = "sparse_categorical_accuracy"
    about = {
        "images": "the images",
        "table": "the table",
        "arrays": "the arrays",
        "text": "the text",
    }[data.kind] + f" in {Path(data.source['path']).name}"
    config = _CONFIG.format(
        about=about,
        file=f"{name}.py",
        module=module,
        model=_literal(model, 8, 14),
        adapt=adapt if networks.is_adapted(data) else "",
        source=_literal(data.source, 12, 19),
        # Images: divided by 255.
        prepare="" if data.inputs == "image" else identity,
        train_split=data.train_split,
        training=len(data.training),
        evaluation_split=data.evaluation_split,
        evaluation=len(data.evaluation),
        batch_size=size,
        objective=_literal(_objective(data), 8, 18),
        epochs=epochs,
        metric=metric,
        mode=mode,
    )
    command = f"tfdist.main --config={name}.py --config.cluster.requeue=true"
    job = _job(name, command)
    line = "    sbatch job.sbatch\n" if job else ""
    readme = _README.format(name=name, module=module, about=about, longer=2 * epochs, job=line)
    return {f"{name}.py": config, f"{module}.py": networks.code(name, data), "README.md": readme, **job}


def of_script(name: str) -> dict[str, str]:
    """Returns file name -> content of the directory of a Keras script."""
    job = _job(name, f"tfdist.run --workdir=runs/{name} {name}.py")
    line = "    sbatch job.sbatch\n" if job else ""
    return {f"{name}.py": _SCRIPT.format(name=name), "README.md": _SCRIPT_README.format(name=name, job=line), **job}


def _objective(data: Data) -> dict:
    objectives = "tfdist.zoo.objectives"
    if data.kind == "text":
        return {
            "target": f"{objectives}:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["sparse_categorical_accuracy"],
            "arguments": {"from_logits": True},
            "inputs": data.inputs,
            "labels": data.labels,
        }
    if data.classes:
        inputs = {} if data.inputs == "image" else {"inputs": data.inputs}
        return {"target": f"{objectives}:classification", **inputs}
    inputs = {} if data.inputs == "inputs" else {"inputs": data.inputs}
    return {"target": f"{objectives}:regression", **inputs}


def _batch_size(data: Data) -> int:
    """Returns a power of 2: it can be divided among 1, 2, 4 or 8 devices."""
    most, size = 32 if data.kind in ("images", "text") else 64, 1
    while size < most and 16 * size <= len(data.training):
        size *= 2
    return size


def _literal(value: object, indent: int, before: int) -> str:
    """Returns a value as Python code; a dict that does not fit into a line of 110 characters has a line for each item.

    Args:
        value: a dict, a list, a text, a number or None.
        indent: of the line on which it begins, in spaces.
        before: characters before it on this line.
    """
    text = _line(value)
    if not isinstance(value, dict) or before + len(text) < 110:
        return text
    space = " " * (indent + 4)
    items = [f"{space}{_line(key)}: {_literal(item, indent + 4, 0)},\n" for key, item in value.items()]
    return "{\n" + "".join(items) + " " * indent + "}"


def _line(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_line(key)}: {_line(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_line, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _job(name: str, command: str) -> dict[str, str]:
    """Returns the batch file for the launcher of this machine: Slurm's, or none."""
    if not shutil.which("sbatch"):
        return {}
    gpus = _gpus_per_node()
    text = _JOB.format(
        name=name,
        tasks=gpus or 1,
        gpus=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
        cpus=max(1, (os.cpu_count() or 1) // (gpus or 1)),
        python=sys.executable,
        command=command,
    )
    return {"job.sbatch": text}


def _gpus_per_node() -> int:
    """Returns the largest number of GPUs of a node, as Slurm knows it; 0 if there are none or Slurm does not answer."""
    try:
        done = subprocess.run(["sinfo", "-h", "-o", "%G"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = [word.partition("(")[0].split(":") for line in done.stdout.split() for word in line.split(",")]
    return max((int(one[-1]) for one in words if one[0] == "gpu" and one[-1].isdecimal()), default=0)
