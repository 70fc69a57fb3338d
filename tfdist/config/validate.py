"""Checks of a config that need neither data nor devices: types, ranges, contradictions. Imports no TensorFlow."""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from tfdist.config import diff, schema, text

# The types of fields in words.
_KINDS = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "a string"},
    **{list: "a list", dict: "a dict", types.NoneType: "None"},
}
# The sections with a field `every`.
_REPEATED = ("evaluation", "consistency", "checkpoint", "report")
# The least value -> the fields; 1e-9: above 0.
_AT_LEAST = {
    1: (
        *("data.batch_size", "data.evaluation_batch_size", "data.shuffle_buffer", "train.steps", "train.micro_batches"),
        *("checkpoint.keep", "cluster.logical_devices", "cluster.port_count"),
        *(f"cluster.{of}_seconds" for of in ("connect", "heartbeat", "stall", "first_stall", "time_limit")),
        *(f"{section}.every.steps" for section in _REPEATED),
    ),
    0: ("learning_rate.peak", "learning_rate.warmup_epochs", "communication.bytes_per_pack", "seed"),
    1e-9: (
        *("train.epochs", "train.clip_norm", "train.call_seconds", "learning_rate.reference_batch_size"),
        *(f"{section}.every.epochs" for section in _REPEATED),
    ),
}


def validate(config: schema.Config, find_more: Callable[[], Iterable[str]] = lambda: ()) -> None:
    """Checks the types and values of all fields; a ValueError lists each invalid one with what is allowed.

    Args:
        find_more: returns more problems as lines without "config."; called if all types are right.
    """
    problems = list(_type_problems(config, ""))
    if not problems:
        problems = [*_value_problems(config), *_contradictions(config), *find_more()]
    if problems:
        raise ValueError("The config is invalid:\n" + "\n".join(f"  config.{line}" for line in problems))


def type_problem(value: Any, hint: Any) -> str:
    """Returns what a field with the type `hint` must be, as a sentence without its name; "": `value` is valid."""
    if hint is Any:  # `_value_problems` checks it.
        return ""
    if dataclasses.is_dataclass(hint):
        return f"must be a {hint.__name__}."
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        near = text.closest(value, choices, 0.5) if isinstance(value, str) else ""
        meant = f" Did you mean {near!r}?" if near else ""
        return "" if value in choices else f"must be one of {', '.join(choices)}.{meant}"
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [typing.get_origin(member) or member for member in members]
    if type(value) in kinds or (type(value) is int and float in kinds):
        return ""
    return f"must be {' or '.join(_KINDS.get(kind, f'a {kind.__name__}') for kind in kinds)}."


def _type_problems(section: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(type(section))
    for field, value in diff.items(section):
        name, hint = f"{prefix}{field}", hints[field]
        if dataclasses.is_dataclass(hint) and isinstance(value, hint):
            yield from _type_problems(value, f"{name}.")
        elif problem := type_problem(value, hint):
            yield f"{name} {problem} Received: {value!r} ({type(value).__name__})"
        elif isinstance(value, dict | list):
            yield from _not_json(name, value)


def _not_json(name: str, value: Any) -> Iterator[str]:
    """Yields what cannot be saved and compared."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{name} must have strings as keys, such as {str(key)!r}. Received: {key!r}"
            yield from _not_json(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_json(f"{name}[{index}]", item)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        yield (
            f"{name} must be a finite number, a string, True, False, None, or a list or dict of these, which a run can "
            "save: make arrays and other objects in the function that `target` names. Received: "
            f"{value if isinstance(value, float) else type(value).__name__}"
        )


def _value_problems(config: schema.Config) -> Iterator[str]:
    for low, names in _AT_LEAST.items():
        for name in names:
            value = operator.attrgetter(name)(config)
            if value is not None and not low <= value < math.inf:
                yield f"{name} must be {f'at least {low}' if low == int(low) else 'above 0'}. Received: {value}"
            elif isinstance(value, int) and value >= 2**31:
                yield f"{name} must be below 2**31. Received: {value}"
    for section in _REPEATED:
        after = getattr(config, section).every.after
        if not all(type(epoch) is int and epoch >= 1 for epoch in after or ()):
            yield f"{section}.every.after must list epochs, numbered from 1. Received: {after!r}"
    gpus = config.cluster.gpus
    numbers = gpus if isinstance(gpus, list) else [0 if gpus is None else gpus]
    valid = bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
    if not valid or len(set(numbers)) < len(numbers):
        yield (
            "cluster.gpus must be None (all), a number of GPUs (0: the CPU) or a list of different indices from 0. "
            f"Received: {gpus!r}"
        )


def _contradictions(config: schema.Config) -> Iterator[str]:
    data, train = config.data, config.train
    if data.pipeline == "textbook" and data.shards != "batch":
        needs = 'needs data.pipeline="stream": in the textbook pipeline TensorFlow divides the data'
        yield f'data.shards="{data.shards}" {needs}'
    if data.pipeline == "stream" and data.shuffle_buffer is not None:
        effect = 'has no effect with data.pipeline="stream": set it to "textbook"'
        yield f"data.shuffle_buffer={data.shuffle_buffer} {effect}"
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
