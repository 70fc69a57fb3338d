"""The files that `tfdist new` writes: config, network, README, batch file, script."""

import json
import math
import os
import shutil
import sys
from pathlib import Path

from tfdist.tools import child_runs
from tfdist.tools.start import shipped
from tfdist.tools.start.look import Data

# Optimizer steps of the first run.
_STEPS, _MAX_EPOCHS, _LEAST_EPOCHS = 300, 20, 5
# The end of the batch file of a script, which leaves that to it; a config requeues the job itself.
_REQUEUE = """
code=$?
# 75: stopped in time and saved. The same command resumes.
[ "$code" -ne 75 ] || scontrol requeue "$SLURM_JOB_ID"
exit "$code"\
"""


def of_data(name: str, data: Data) -> dict[str, str]:
    """Returns file name -> content of the directory for `data`; `name` is an identifier of Python."""
    module = f"{name}_model"
    model = {"target": f"{module}:network", **({"num_classes": data.classes} if data.classes else {})}
    size = _batch_size(data)
    steps = max(1, len(data.training) // size)
    epochs = min(_MAX_EPOCHS, max(_LEAST_EPOCHS, round(_STEPS / steps)))
    identity = '            prepare={"target": "tfdist.zoo.prepare:identity"},\n'
    adapt = f'        adapt={{"target": "{module}:adapt"}},\n'
    metric, mode = ("accuracy", "max") if data.classes else ("mae", "min")
    if data.kind == "text":
        metric = "sparse_categorical_accuracy"
    about = f"the {data.kind} in {Path(data.source['path']).name}"
    config = shipped.fill(
        "config",
        about=about,
        file=f"{name}.py",
        module=module,
        model=_literal(model, 8, 14),
        adapt="" if data.kind == "text" or data.has_images else adapt,
        source=_literal(data.source, 12, 19),
        # Images: divided by 255.
        prepare="" if data.has_images else identity,
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
    readme = shipped.fill("readme", name=name, module=module, about=about, longer=2 * epochs, job=line)
    return {f"{name}.py": config, f"{module}.py": _network(name, data), "README.md": readme, **job}


def _network(name: str, data: Data) -> str:
    """Returns the module of the network for `data`."""
    if data.kind == "text":
        return shipped.fill("text", name=name, shape=data.shape)
    arguments, of_outputs = "num_classes" if data.classes else "", _of_outputs(data)
    if data.has_images:
        stages = min(4, max(1, int(math.log2(min(data.shape[:2]))) - 2))
        filters = (16, 32, 64, 128)[:stages]
        return shipped.fill("images", name=name, shape=data.shape, filters=filters, arguments=arguments, **of_outputs)
    flat = len(data.shape) == 1
    values = f'read(10_000)["{data.inputs}"]'
    return shipped.fill(
        "dense",
        name=name,
        shape=data.shape,
        arguments=arguments and f"{arguments}, ",
        first="inputs" if flat else "layers.Flatten()(inputs)",
        values=values if flat else f"keras.ops.reshape({values}, (-1, {math.prod(data.shape)}))",
        **of_outputs,
    )


def _of_outputs(data: Data) -> dict[str, str]:
    """Returns what the outputs are, in words, and the last lines of the network."""
    if data.classes:
        last = "return keras.Model(inputs, layers.Dense(num_classes)(x))"
        return {"outputs": "logits, one per class", "last": last}
    mean, deviation = data.scale
    last = (
        f"x = layers.Dense({data.targets})(x)\n    # Outputs in the units of the targets: their deviation and mean.\n"
        f"    return keras.Model(inputs, layers.Rescaling({deviation:.6g}, {mean:.6g})(x))"
    )
    return {"outputs": "numbers", "last": last}


def of_script(name: str) -> dict[str, str]:
    """Returns file name -> content of the directory of a Keras script."""
    job = _job(name, f"tfdist.run --workdir=runs/{name} {name}.py", _REQUEUE)
    line = "    sbatch job.sbatch\n" if job else ""
    readme = shipped.fill("script_readme", name=name, job=line)
    return {f"{name}.py": shipped.fill("script", name=name), "README.md": readme, **job}


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

    It begins on a line that is indented by `indent` spaces, with `before` characters before it.
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


def _job(name: str, command: str, then: str = "") -> dict[str, str]:
    """Returns the batch file for the launcher of this machine: Slurm's, or none. `then`: the lines after srun's."""
    if not shutil.which("sbatch"):
        return {}
    gpus = _gpus_per_node()
    text = shipped.fill(
        "job",
        name=name,
        tasks=gpus or 1,
        gpus=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
        cpus=max(1, (os.cpu_count() or 1) // (gpus or 1)),
        python=sys.executable,
        command=command,
        then=then,
    )
    return {"job.sbatch": text}


def _gpus_per_node() -> int:
    """Returns the largest number of GPUs of a node, as Slurm knows it; 0 if there are none or Slurm does not answer."""
    answer = child_runs.answer(["sinfo", "-h", "-o", "%G"], seconds=10)
    words = [word.partition("(")[0].split(":") for line in answer.split() for word in line.split(",")]
    return max((int(one[-1]) for one in words if one[0] == "gpu" and one[-1].isdecimal()), default=0)
