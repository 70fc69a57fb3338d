"""Checks of a config that need neither data nor devices: types, ranges, contradictions. Imports no TensorFlow."""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from tfdist.config import diff, removed, schema, text

# What belongs to steps of replicas that sum their gradients.
_NOT_ASYNCHRONOUS = ("train.recompute", "train.recompute_mb", "communication.dtype", "communication.sparse_as_dense")


def validate(config: schema.Config) -> None:
    """Checks the types and values of all fields; a ValueError lists each invalid one with what is allowed."""
    problems = list(_type_problems(config, ""))
    if not problems:
        problems = [*_value_problems(config), *_contradictions(config)]
    if problems := problems or list(_json_problems(config)):
        raise ValueError("The config is invalid:\n" + "\n".join(f"  config.{line}" for line in problems))


def _type_problems(section: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value, hint = getattr(section, field.name), hints[field.name]
        if dataclasses.is_dataclass(hint):
            if isinstance(value, hint):
                yield from _type_problems(value, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name} must be a {hint.__name__}. Received: {value!r}"
            continue
        if hint is Any:
            continue  # `_value_problems` checks it.
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        allowed = tuple(typing.get_origin(member) or member for member in members)
        if float in allowed and type(value) is int:
            continue
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            if value not in choices:
                near = text.closest(value, choices, 0.5) if isinstance(value, str) else ""
                hint = removed.of_value(f"{prefix}{field.name}", value)
                hint = f" {hint}" if hint else f" Did you mean {near!r}?" if near else ""
                yield f"{prefix}{field.name} must be one of {', '.join(choices)}.{hint} Received: {value!r}"
        elif type(value) not in allowed:
            names = " or ".join("None" if t is types.NoneType else t.__name__ for t in allowed)
            yield f"{prefix}{field.name} must be {names}. Received: {value!r} ({type(value).__name__})"


def _value_problems(config: schema.Config) -> Iterator[str]:
    def at_least(name: str, low: float) -> Iterator[str]:
        value = operator.attrgetter(name)(config)
        if value is not None and not low <= value < math.inf:
            yield f"{name} must be {f'at least {low}' if low == int(low) else 'above 0'}. Received: {value}"
        elif isinstance(value, int) and value >= 2**31:
            yield f"{name} must be below 2**31. Received: {value}"

    for name in (
        *("data.batch_size", "data.evaluation_batch_size", "data.shuffle_buffer"),
        *("train.steps", "train.micro_batches", "train.local_steps", "train.nonfinite_limit"),
        *("train.virtual_replicas", "communication.compression.rank", "communication.compression.smallest"),
        *("consistency.limit", "consistency.audit.every", "consistency.audit.limit"),
        *("checkpoint.keep", "report.noise_scale"),
        *("cluster.logical_devices", "cluster.port_count"),
    ):
        yield from at_least(name, 1)
    sections = ("evaluation", "consistency", "checkpoint", "report")
    for every in (*(f"{section}.every" for section in sections), "checkpoint.keep_every"):
        yield from at_least(f"{every}.steps", 1)
        yield from at_least(f"{every}.epochs", 1e-6)
        after = operator.attrgetter(f"{every}.after")(config)
        if not all(type(epoch) is int and epoch >= 1 for epoch in after or ()):
            yield f"{every}.after must list epochs, numbered from 1. Received: {after!r}"
    profile = config.report.profile
    if profile is not None and not (
        len(profile) == 2 and all(type(step) is int for step in profile) and 1 <= profile[0] <= profile[1]
    ):
        yield f"report.profile must be [first, last], two steps counted from 1. Received: {profile}"
    yield from _gpu_problems(config.cluster.gpus)
    for name in (
        *("learning_rate.peak", "learning_rate.warmup_epochs", "seed"),
        *("communication.bytes_per_pack", "communication.compression.exact_steps"),
    ):
        yield from at_least(name, 0)
    for name in (
        "train.epochs",
        "cluster.pause_epochs",
        "train.clip_norm",
        "train.recompute_mb",
        "train.call_seconds",
        "learning_rate.reference_batch_size",
    ):
        yield from at_least(name, 1e-9)
    for seconds in ("connect", "heartbeat", "stall", "first_stall", "time_limit"):
        yield from at_least(f"cluster.{seconds}_seconds", 1)


def _json_problems(config: schema.Config) -> Iterator[str]:
    for name, value in diff.flatten(config):
        for found in _not_json(value):
            if name.startswith("data.source.") and type(found).__module__ == "numpy":
                continue  # Workers and runs compare what the source reads.
            yield (
                f"{name} must be a finite number, a text, True, False, None, or a list or dict of these: a run resumes "
                "only with an equal config, and other objects cannot be compared. Make the object in the function that "
                f"`target` names. Received: {found if isinstance(found, float) else type(found).__name__}"
            )
    for name, key in _other_keys(config):
        yield (
            f"{name} must have texts as keys, as a run saves its config in JSON: write {str(key)!r}, and convert it in "
            f"the function that `target` names. Received: {key!r}"
        )


def _not_json(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _not_json(item)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        yield value


def _other_keys(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (field, key) for each key of a dict that is no text."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _other_keys(item, name)
    elif dataclasses.is_dataclass(value) or isinstance(value, dict):
        for key, item in diff.items(value):
            if isinstance(key, str):
                yield from _other_keys(item, f"{name}.{key}" if name else key)
            else:
                yield name, key


def _gpu_problems(gpus: Any) -> Iterator[str]:
    numbers = gpus if isinstance(gpus, list) else [0 if gpus is None else gpus]
    valid = bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
    if not valid or len(set(numbers)) < len(numbers):
        yield (
            "cluster.gpus must be None (all), a number of GPUs (0: the CPU) or a list of different indices from 0. "
            f"Received: {gpus!r}"
        )


def noise_scale_problem(config: schema.Config) -> str:
    """Returns what the noise scale needs and this config has not, as the end of a sentence; "": nothing."""
    train = config.train
    if train.local_steps == 1 and not train.asynchronous and train.virtual_replicas is None:
        dtype, rank = config.communication.dtype, config.communication.compression.rank
        if rank is not None:
            return f"needs communication.compression.rank=None: whole gradients are summed. Received: {rank}"
        return "" if dtype == "float32" else f'needs communication.dtype="float32". Received: {dtype!r}'
    return (
        "needs one sum of gradients per step: train.local_steps=1, asynchronous=False and virtual_replicas=None. "
        f"Received: {train.local_steps}, {train.asynchronous}, {train.virtual_replicas}"
    )


def _need_one_sum(config: schema.Config) -> Iterator[str]:
    train = config.train
    if train.local_steps == 1 and not train.asynchronous:
        return
    received = f"local_steps={train.local_steps}, asynchronous={train.asynchronous}"
    rank = config.communication.compression.rank
    if rank is not None:
        yield (
            "communication.compression.rank needs train.local_steps=1 and no train.asynchronous: otherwise no "
            "gradients are summed that could be compressed. Set it to None, or these. "
            f"Received: rank={rank}, {received}"
        )
    if train.shard_optimizer:
        yield (
            "train.shard_optimizer needs train.local_steps=1 and no train.asynchronous: otherwise each replica updates "
            f"all weights by itself. Set it to False, or these. Received: {received}"
        )


def _contradictions(config: schema.Config) -> Iterator[str]:
    data, train = config.data, config.train
    plain = train.precision != "float16" and train.nonfinite == "stop" and train.micro_batches == 1
    received = (
        f"Received: local_steps={train.local_steps}, micro_batches={train.micro_batches}, "
        f"nonfinite={train.nonfinite!r}, precision={train.precision!r}"
    )
    if train.local_steps > 1 and not plain:
        yield (
            f'train.local_steps={train.local_steps} needs micro_batches=1, nonfinite="stop" and a precision other than '
            f"float16. {received}"
        )
    if train.asynchronous and not (plain and train.local_steps == 1 and not config.callbacks):
        yield (
            'train.asynchronous needs local_steps=1, micro_batches=1, nonfinite="stop", a precision other than '
            f"float16 and no callbacks. {received}"
        )
    if config.report.noise_scale is not None and (reason := noise_scale_problem(config)):
        yield f"report.noise_scale={config.report.noise_scale} {reason}"
    if config.consistency.audit.every is not None and train.virtual_replicas is None:
        yield (
            f"consistency.audit.every={config.consistency.audit.every} needs train.virtual_replicas, such as 8: only "
            "then a share of the batch has the same bits on each replica. Received: None"
        )
    yield from _need_one_sum(config)
    if train.asynchronous:
        for name in _NOT_ASYNCHRONOUS:
            of_config, default = map(operator.attrgetter(name), (config, schema.Config(model={})))
            if of_config != default:
                yield f"{name}={of_config!r} has no effect with train.asynchronous=True: set it to {default!r}"
    for name in ("recompute", "recompute_mb"):
        if getattr(train, name) and train.xla:
            yield f"train.{name} needs train.xla=False: XLA merges both computations. Received: {getattr(train, name)}"
    if train.recompute and train.recompute_mb is not None:
        yield f"train.recompute_mb={train.recompute_mb} chooses what is computed again: remove train.recompute"
    if data.pipeline == "textbook" and data.shards != "batch":
        needs = 'needs data.pipeline="stream": in the textbook pipeline auto_shard divides the data'
        yield f'data.shards="{data.shards}" {needs}'
    for name, default in (("auto_shard", "auto"), ("shuffle_buffer", None)):
        if data.pipeline == "stream" and getattr(data, name) != default:
            yield f'data.{name}={getattr(data, name)!r} has no effect with data.pipeline="stream": set it to "textbook"'
    if data.cache == "none" and data.cache_dir is not None:
        yield f'data.cache_dir={data.cache_dir!r} has no effect with data.cache="none": set data.cache to "raw"'
    if (train.epochs is None) == (train.steps is None):
        unset = "" if train.epochs is None else ". To train by steps add --config.train.epochs=none"
        yield f"train: set exactly one of epochs and steps. Received: epochs={train.epochs}, steps={train.steps}{unset}"
    if config.cluster.port_base < 1024 or config.cluster.port_base + config.cluster.port_count > 65536:
        yield (
            "cluster: [port_base, port_base + port_count) must be within 1024..65535. "
            f"Received: port_base={config.cluster.port_base}, port_count={config.cluster.port_count}"
        )
    if config.checkpoint.best_metric is not None and config.data.evaluation_split is None:
        yield (
            f"checkpoint.best_metric={config.checkpoint.best_metric!r} needs evaluations, but "
            "data.evaluation_split is None"
        )
    for spec in config.callbacks:
        if not isinstance(spec, dict):
            yield f'callbacks must be a list of dicts with a "target". Received: {spec!r}'
