"""What earlier releases had and this one has not, each with what to use instead. Imports no TensorFlow.

A config or a command that names one of these gets its sentence, and no guess at a similar name.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

# A removed field whose value had a meaning only beside another one: saved configs may have any.
ANY = object()
_NO_COPY = "a run whose replicas differ ends; the same command resumes from the newest checkpoint."
_KERAS_TENSORBOARD = (
    "add {'target': 'keras.callbacks:TensorBoard', 'log_dir': 'WORKDIR/tensorboard/keras', 'histogram_freq': 1} to "
    "config.callbacks."
)
# Field of a config -> (its default, what to use instead). A saved config may have the default.
FIELDS: dict[str, tuple[Any, str]] = {
    "checkpoint.export_preprocessing": (
        False,
        "make keras.layers.Rescaling the first layer of the model, and set config.data.prepare to "
        "{'target': 'tfdist.zoo.prepare:image_bytes'}, which leaves bytes.",
    ),
    "checkpoint.keep_every": (
        {"steps": None, "epochs": None, "after": None},
        "set checkpoint.keep to the number of checkpoints to keep.",
    ),
    "data.auto_shard": (
        "auto",
        "TensorFlow divides the batches of the textbook pipeline by its policy DATA; a tf.data.Dataset of files trains "
        "by tfdist.fit in a script (docs/from-fit.md).",
    ),
    "report.verbose": (ANY, "metrics.jsonl and TensorBoard have the learning rate, and the times of each worker."),
    "report.graph": (False, _KERAS_TENSORBOARD),
    "report.histograms": (ANY, _KERAS_TENSORBOARD),
    "report.notify": (
        None,
        "`tfdist runs` says how runs have ended, and so does the exit code of a run, after which a shell can call "
        "anything; Slurm sends mail with --mail-type=END,FAIL.",
    ),
    "communication.compression": (
        ANY,
        'set communication.dtype to "float16", or to "bfloat16" without NCCL, which halves the bytes.',
    ),
    "consistency.audit": (
        ANY,
        "the comparisons of consistency.every find states that differ, and tfdist verify trains parts of a run again.",
    ),
    "consistency.action": ("end", _NO_COPY),
    "consistency.limit": (ANY, _NO_COPY),
    "train.shard_optimizer": (
        False,
        "use train.micro_batches, or an optimizer with fewer slots; for a model that does not fit one GPU, FSDP.",
    ),
    "report.noise_scale": (None, "`tfdist sweep` trains with several batch sizes, and compares the runs."),
    "train.asynchronous": (False, "tfdist asynchronous trains with parameter servers (docs/consistency.md)."),
    "train.local_steps": (1, "train by tfdist local_sgd --local_steps=4, a lesson (docs/consistency.md)."),
    "train.recompute_mb": (None, "name layers in train.recompute, or make them in a keras.RematScope."),
    # A run that has paused goes on.
    "cluster.pause_epochs": (ANY, "SIGTERM stops and saves a run, and the same command goes on."),
}
# Command -> what to use instead.
COMMANDS: dict[str, str] = {
    "cost": "`sacct --format=JobID,ElapsedRaw,ConsumedEnergy` shows the time and energy of jobs.",
    "completion": "tfdist COMMAND --help lists the flags of a command, and with a config its fields.",
    "lr_range": "train with --config.learning_rate.schedule.target=tfdist.zoo.schedules:range_test, and draw the loss "
    "with tfdist plot RUN --x=learning_rate (docs/sweeps.md).",
    "recipes": "tfdist runs lists runs with their configs and results.",
    "burnin": "test nodes with `dcgmi diag`, nccl-tests and stress-ng.",
    "why": "`tfdist compare A B` names the first step at which the states differ, and what else does.",
}
# Module of tfdist, or function as in a target, that configs may have named -> what to use instead.
MODULES: dict[str, str] = {
    "tfdist.all_gather": "a step has the tensors of the whole batch (docs/own_step.md): use the tensor itself.",
    "tfdist.per_example": "pass the loss or metric itself, for which the step gathers what it reads (docs/scripts.md).",
    "tfdist.tools.many_runs.trackers": "name the library's own callback, such as mlflow.keras:MlflowCallback "
    "(docs/many-runs.md).",
    "tfdist.zoo.models:resnet9": "use tfdist.configs.networks.airbench:network, which learns CIFAR-10 in fewer epochs.",
    "tfdist.zoo.optimizers": "lookahead_sgd and muon are in tfdist.configs.networks.optimizers.",
    "tfdist.zoo.sources:cifar": "it is tfdist.configs.networks.cifar:cifar now, with the same arguments.",
    "tfdist.zoo.sources:idx": "keras.datasets and tensorflow-datasets have such data: see npz and tfds.",
    "tfdist.zoo.sources:imagenet": "it is tfdist.configs.networks.imagenet:imagenet now, with the same arguments.",
    "tfdist.zoo.sources:line": "it is tfdist.configs.networks.classic:points now, with the same arguments.",
    "tfdist.zoo.sources:text": "it is tfdist.configs.networks.char_gpt:text now, with the same arguments.",
    "tfdist.zoo.sources:prepared": "name the source of the images; to scale them once: docs/your-data.md.",
    "tfdist.zoo.schedules:exponential": "it is tfdist.zoo.schedules:range_test now, with the same arguments.",
}


def of_field(name: str) -> str:
    """Returns the sentence for a field by its dotted name; "": there was none."""
    for field, (_, instead) in FIELDS.items():
        if field == name or name.startswith(f"{field}."):
            return f"config.{name} was removed: {instead}"
    return ""


def of_error(error: BaseException) -> str:
    """Returns the sentence for an error of a config file that sets a removed field; "": another error."""
    named = re.findall(r"'(\w+)'", str(error)) if isinstance(error, TypeError | AttributeError) else []
    return next((of_field(name) for name in FIELDS if name.split(".")[1] in named), "")


def of_command(name: str) -> str:
    """Returns the sentence for a command; "": there was none of this name."""
    return f"tfdist {name} was removed: {COMMANDS[name]}" if name in COMMANDS else ""


def of_module(name: str) -> str:
    """Returns the sentence for a module of tfdist, or a function as in a target; "": there was none of this name."""
    return f"{name} was removed: {MODULES[name]}" if name in MODULES else ""


def without_removed(saved: dict[str, Any], refuses: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Returns a saved config without removed fields.

    Args:
        refuses: whether a field may have its default only.

    Raises:
        ValueError: one of them has a value other than its default.
    """
    kept, problems = copy.deepcopy(saved), []
    for name, (default, _) in FIELDS.items():
        section, _, field = name.partition(".")
        value = kept[section].pop(field, default) if isinstance(kept.get(section), dict) else default
        if default is not ANY and value != default and refuses(name):
            problems.append(f"{of_field(name)} Received: {value!r}")
    if problems:
        raise ValueError("The saved config cannot be used any more:\n" + "\n".join(f"  {line}" for line in problems))
    return kept
