"""What earlier releases had and this one has not, each with what to use instead. Imports no TensorFlow.

A command line or a config that names one of these gets its sentence, and no guess at a similar name.
"""

import re
import typing
from collections.abc import Callable, Container, Iterator
from typing import Any

from tfdist.config import schema

# Errors of Python for a section with a field that it has not, and for a class that `tfdist.config` has not.
_SETS = re.compile(
    r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'|'(\w+)' object has no attribute '(\w+)'"
)
_NAMES = re.compile(r"module 'tfdist\.config[\w.]*' has no attribute '(\w+)'")
# A removed field whose value had a meaning only beside another one: saved configs may have any.
ANY = object()
_NO_AUDITS = (
    "the comparisons of consistency.every find states that differ, and tfdist verify trains parts of a run again and "
    "compares hashes."
)
_NO_COMPRESSION = 'set communication.dtype to "float16", or to "bfloat16" without NCCL, which halves the bytes.'
_NO_SHARDED_OPTIMIZER = (
    "use train.micro_batches, or an optimizer with fewer slots, such as SGD; for a model that does not fit one GPU, "
    "another framework (FSDP)."
)
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
    "report.graph": (False, _KERAS_TENSORBOARD),
    "report.histograms.steps": (None, _KERAS_TENSORBOARD),
    "report.histograms.epochs": (None, _KERAS_TENSORBOARD),
    "report.histograms.after": (None, _KERAS_TENSORBOARD),
    "report.notify": (
        None,
        "`tfdist runs` says how runs have ended, and so does the exit code of a run, after which a shell can call "
        "anything; Slurm sends mail with --mail-type=END,FAIL.",
    ),
    "communication.compression.exact_steps": (ANY, _NO_COMPRESSION),
    "communication.compression.rank": (None, _NO_COMPRESSION),
    "communication.compression.smallest": (ANY, _NO_COMPRESSION),
    "consistency.audit.action": (ANY, _NO_AUDITS),
    "consistency.audit.every": (None, _NO_AUDITS),
    "consistency.audit.limit": (ANY, _NO_AUDITS),
    "train.shard_optimizer": (False, _NO_SHARDED_OPTIMIZER),
    "report.noise_scale": (None, "`tfdist sweep` trains with several batch sizes, and compares the runs."),
    "train.asynchronous": (False, "tfdist asynchronous trains with parameter servers (docs/consistency.md)."),
    "train.local_steps": (1, "train by tfdist local_sgd --local_steps=4, a lesson (docs/consistency.md)."),
    "train.recompute_mb": (None, "name layers in train.recompute, or make them in a keras.RematScope."),
    # A run that has paused goes on.
    "cluster.pause_epochs": (ANY, "a file STOP in the workdir stops and saves a run, and the same command goes on."),
}
# (field that still exists, value that it had) -> what to use instead.
VALUES: dict[tuple[str, Any], str] = {
    ("train.precision", "auto"): 'set "bfloat16" or "float16" on GPUs; tfdist doctor says what the GPU can.',
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
    ("multiple_of", "memory_mb"): "the batch is doubled: start with a multiple, such as --smallest=24.",
    ("powers_of_two", "memory_mb"): "the batch is doubled from --smallest on.",
    ("largest", "memory_mb"): "the batch is doubled until it does not fit.",
    ("to", "output"): "images are written as JPEGs: give --size and --output.",
    ("quality", "output"): "images are written as JPEGs of quality 90.",
    ("seconds", "job_minutes"): "reading is measured for 2 s.",
    ("arrays", "pretrained"): "write the source of an .npz file into a config (docs/your-data.md).",
    ("text", "pretrained"): "write the source of a text into a config (docs/your-data.md).",
    ("to", "format"): "tfdist export has --format=tf_saved_model, onnx or litert.",
    ("out", "format"): "tfdist export takes the file as its last word: tfdist export RUN --format=onnx OUT.",
    ("format=savedmodel", ""): "use --format=tf_saved_model.",
    ("format=tflite", ""): "use --format=litert, as LiteRT is the new name of TensorFlow Lite.",
    ("format=safetensors", ""): "arrays.npz of a checkpoint has the weights by their names.",
    ("format=jax", ""): "load model.keras in a process with KERAS_BACKEND=jax.",
    ("format=keras", ""): "model.keras is in the workdir of a finished run.",
}
# Module of tfdist, or function as in a target, that configs may have named -> what to use instead.
MODULES: dict[str, str] = {
    "tfdist.tools.many_runs.trackers": "name the library's own callback, such as mlflow.keras:MlflowCallback "
    "(docs/many-runs.md).",
    "tfdist.zoo.schedules:exponential": "it is tfdist.zoo.schedules:range_test now, with the same arguments.",
}


def of_field(name: str) -> str:
    """Returns the sentence for a field by its dotted name, or for a section of removed fields; "": it was none."""
    for field, (_, instead) in FIELDS.items():
        if field == name or field.startswith(f"{name}.") or name.startswith(f"{field}."):
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
    if found := _SETS.search(str(error)):
        kind, name = filter(None, found.groups())
        sections = {
            getattr(hint, "__name__", ""): field for field, hint in typing.get_type_hints(schema.Config).items()
        }
        return of_field(f"{sections[kind]}.{name}") if kind in sections else ""
    if found := _NAMES.search(str(error)):
        for field in FIELDS:
            section = field.rpartition(".")[0]
            if section.rpartition(".")[2] == found[1].lower():
                return of_field(section)
    return ""


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
    problems = list(_problems(saved, "", refuses))
    if problems:
        raise ValueError("The saved config cannot be used any more:\n" + "\n".join(f"  {line}" for line in problems))
    return _kept(saved, "")


def _problems(section: dict[str, Any], prefix: str, refuses: Callable[[str], bool]) -> Iterator[str]:
    for key, value in section.items():
        name = f"{prefix}{key}"
        if name in FIELDS:
            if FIELDS[name][0] not in (ANY, value) and refuses(name):
                yield f"{of_field(name)} Received: {value!r}"
        elif isinstance(value, dict):
            yield from _problems(value, f"{name}.", refuses)
        elif refuses(name) and (sentence := of_value(name, value)):
            yield sentence


def _kept(section: dict[str, Any], prefix: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        if name in FIELDS:
            continue
        if isinstance(value, dict) and any(field.startswith(f"{name}.") for field in FIELDS):
            value = _kept(value, f"{name}.")
            if not value:  # All of its fields were removed.
                continue
        kept[key] = value
    return kept
