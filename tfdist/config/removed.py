"""What earlier releases had and this one has not, each with what to use instead. Imports no TensorFlow.

A command line or a config that names one of these gets its sentence, and no guess at a similar name.
"""

import copy
import re
import typing
from collections.abc import Callable, Container
from typing import Any

from tfdist.config import schema

# Errors of Python for a section with a field that it has not.
_SETS = re.compile(
    r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'|'(\w+)' object has no attribute '(\w+)'"
)
# A removed field whose value had a meaning only beside another one: saved configs may have any.
ANY = object()
_NO_COPY = "a run whose replicas differ ends; the same command resumes from the newest checkpoint."
_NO_PROPOSALS = "draw the runs with --random=N, or let an objective of Optuna call tfdist train."
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
    "cluster.pause_epochs": (ANY, "a file STOP in the workdir stops and saves a run, and the same command goes on."),
}
# (field that still exists, value that it had) -> what to use instead.
VALUES: dict[tuple[str, Any], str] = {
    ("data.auto_shard", "file"): "a tf.data.Dataset of files trains by tfdist.fit in a script (docs/from-fit.md).",
    ("train.precision", "auto"): 'set "bfloat16" or "float16" on GPUs; tfdist doctor says what the GPU can.',
    (
        "train.nonfinite",
        "rollback",
    ): 'set "skip", or start again with a lower learning rate.',
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
# (flag, another flag that its command has now, or "") -> what to use instead.
FLAGS: dict[tuple[str, str], str] = {
    ("noise_scale", ""): "`tfdist sweep` trains with several batch sizes, and compares the runs.",
    ("target_run", ""): "`tfdist sweep` trains with several batch sizes, and compares the runs.",
    ("virtual_replicas", "logical_devices"): "a config has them, in train.virtual_replicas (docs/same-bits.md).",
    ("recompute_mb", "logical_devices"): "make layers of the model in a keras.RematScope (docs/scripts.md).",
    ("subprocesses", "logical_devices"): "commands of scripts run on each worker; to run one once: docs/scripts.md.",
    ("min_workers", "grace_seconds"): "start again by hand with fewer --workers: the run resumes.",
    ("prune", "random"): "all runs of a sweep train to their end; a file STOP in the workdir of a run stops it.",
    ("pruner", "random"): _NO_PROPOSALS,
    ("sampler", "random"): _NO_PROPOSALS,
    ("suggest", "random"): _NO_PROPOSALS,
    ("values", "published"): "tfdist plot has --y.",
    ("x", "out"): "tfdist plot draws a value by a field: tfdist plot DIR --x=FIELD --y=best.accuracy.",
    ("y", "out"): "tfdist plot draws a value by a field: tfdist plot DIR --x=FIELD --y=best.accuracy.",
    ("draw_seed", "random"): "--random=N draws the same N runs each time; a larger N draws more.",
    ("nodes", "slurm"): 'options of sbatch are in --slurm: --slurm="--nodes=1 launch/slurm.sbatch".',
    ("time", "slurm"): 'options of sbatch are in --slurm: --slurm="--time=60 launch/slurm.sbatch".',
    ("gpus", "out"): "CUDA_VISIBLE_DEVICES= in the environment hides the GPUs.",
    ("batch_size", "out"): "the batch is that of the run's evaluation.",
    ("most", "out"): "the picture has the 20 worst examples, and wrong.csv all.",
    ("multiple_of", "memory_mb"): "the batch is doubled: start with a multiple, such as --smallest=24.",
    ("powers_of_two", "memory_mb"): "the batch is doubled from --smallest on.",
    ("largest", "memory_mb"): "the batch is doubled until it does not fit.",
    ("task", "data"): "name the task after the course: tfdist course cte_power 7.",
    ("to", "output"): "images are written as JPEGs: give --size and --output.",
    ("quality", "output"): "images are written as JPEGs of quality 90.",
    ("seconds", "job_minutes"): "reading is measured for 2 s.",
    ("arrays", "pretrained"): "write the source of an .npz file into a config (docs/your-data.md).",
    ("text", "pretrained"): "write the source of a text into a config (docs/your-data.md).",
    ("to", "format"): "tfdist export has --format=tf_saved_model, onnx or litert.",
    ("out", "format"): "tfdist export takes the file as its last word: tfdist export RUN --format=onnx OUT.",
    ("format=safetensors", ""): "arrays.npz of a checkpoint has the weights by their names.",
}
# Module of tfdist, or function as in a target, that configs may have named -> what to use instead.
MODULES: dict[str, str] = {
    "tfdist.all_gather": "a step has the tensors of the whole batch (docs/own_step.md): use the tensor itself.",
    "tfdist.tools.many_runs.trackers": "name the library's own callback, such as mlflow.keras:MlflowCallback "
    "(docs/many-runs.md).",
    "tfdist.zoo.models:resnet9": "use tfdist.configs.networks.airbench:network, which learns CIFAR-10 in fewer epochs.",
    "tfdist.zoo.optimizers": "lookahead_sgd and muon are in tfdist.configs.networks.optimizers.",
    "tfdist.zoo.schedules:exponential": "it is tfdist.zoo.schedules:range_test now, with the same arguments.",
}


def of_field(name: str) -> str:
    """Returns the sentence for a field by its dotted name; "": there was none."""
    for field, (_, instead) in FIELDS.items():
        if field == name or name.startswith(f"{field}."):
            return f"config.{name} was removed: {instead}"
    return ""


def of_value(name: str, value: Any) -> str:
    """Returns the sentence for a value that a field no longer takes; "": it never took it."""
    instead = VALUES.get((name, value)) if isinstance(value, str) else None
    return f"config.{name}={value!r} was removed: {instead}" if instead else ""


def of_error(error: BaseException) -> str:
    """Returns the sentence for an error of a config file that sets or names what was removed; "": another error."""
    if not isinstance(error, TypeError | AttributeError):
        return ""
    found = _SETS.search(str(error))
    kind, name = filter(None, found.groups()) if found else ("", "")
    hints = typing.get_type_hints(schema.Config).items()
    section = next((field for field, hint in hints if getattr(hint, "__name__", "") == kind), "")
    return of_field(f"{section}.{name}") if section else ""


def of_command(name: str) -> str:
    """Returns the sentence for a command; "": there was none of this name."""
    return f"tfdist {name} was removed: {COMMANDS[name]}" if name in COMMANDS else ""


def of_flag(name: str, known: Container[str] = ()) -> str:
    """Returns the sentence for a flag of a command, without its dashes; "": there was none of this name.

    Args:
        known: the flags that the command has.
    """
    for (flag, beside), instead in FLAGS.items():
        if flag == name and (not beside or beside in known):
            return f"--{name} was removed: {instead}"
    return ""


def of_module(name: str) -> str:
    """Returns the sentence for a module of tfdist, or a function as in a target; "": there was none of this name."""
    return f"{name} was removed: {MODULES[name]}" if name in MODULES else ""


def without_removed(saved: dict[str, Any], refuses: Callable[[str], bool] = lambda name: True) -> dict[str, Any]:
    """Returns a saved config without removed fields.

    Args:
        refuses: whether a field may have its default only.

    Raises:
        ValueError: one of them has a value other than its default, or a field has a value that was removed.
    """
    kept, problems = copy.deepcopy(saved), []
    for name, (default, _) in FIELDS.items():
        section, _, field = name.partition(".")
        value = kept[section].pop(field, default) if isinstance(kept.get(section), dict) else default
        if default is not ANY and value != default and refuses(name):
            problems.append(f"{of_field(name)} Received: {value!r}")
    for name, value in VALUES:
        section, _, field = name.partition(".")
        if isinstance(kept.get(section), dict) and kept[section].get(field) == value and refuses(name):
            problems.append(of_value(name, value))
    if problems:
        raise ValueError("The saved config cannot be used any more:\n" + "\n".join(f"  {line}" for line in problems))
    return kept
