"""Configs as dotted fields and as JSON, and the differences of two of them. Imports no TensorFlow."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

# Sections and fields that may differ when a run is resumed: they do not affect the final weights, or affect only the
# order of sums, as another number of replicas does.
SECTIONS_FREE_TO_CHANGE = ("evaluation", "consistency", "checkpoint", "report", "cluster")
FIELDS_FREE_TO_CHANGE = (
    *("data.cache", "data.cache_dir"),
    *("communication.implementation", "communication.bytes_per_pack"),
    "train.recompute",
)


def items(config: Any) -> list[tuple[Any, Any]]:
    """Returns the names and values of the fields of a dataclass, or the items of a dict."""
    if dataclasses.is_dataclass(config):
        return [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    return list(config.items())


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `("data.batch_size", 128)` for every leaf of dataclasses and dicts, in order."""
    for key, value in items(config):
        if dataclasses.is_dataclass(value) or (isinstance(value, dict) and value):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def to_json(config: Any) -> Any:
    """Returns a config (dataclass or dict) as JSON values, comparable with those read from a file; tuples are lists."""
    return json.loads(json.dumps(dataclasses.asdict(config) if dataclasses.is_dataclass(config) else config))


def affects_weights(name: str) -> bool:
    """Returns whether a field, by its dotted name, affects the final weights."""
    return name.partition(".")[0] not in SECTIONS_FREE_TO_CHANGE and name not in FIELDS_FREE_TO_CHANGE


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns one line per field that differs between two configs (nested dicts) and affects the final weights."""
    before, after = dict(flatten(old)), dict(flatten(new))
    lines = []
    for name in dict.fromkeys([*before, *after]):
        first, second = before.get(name, "(absent)"), after.get(name, "(absent)")
        if first != second and affects_weights(name):
            lines.append(f"config.{name}: {first!r} was {'saved' if name in before else 'not set'}, now {second!r}")
    return lines
