"""Turns an `ml_collections.ConfigDict` into a `schema.Config`, with the same names. Imports no TensorFlow."""

import dataclasses
import typing
from typing import Any

import ml_collections

from tfdist.config import diff, removed, schema, specs


def to_config(value: Any) -> Any:
    """Returns the `schema.Config` that a ConfigDict describes; any other value is returned as it is.

    A section may be a ConfigDict, a dict or the dataclass of `schema`; a field that is not there has its default.

    Raises:
        ValueError: a name is no field of its section.
    """
    if not isinstance(value, ml_collections.ConfigDict):
        return value
    return _section(schema.Config, removed.without_removed(value.to_dict()), "config")


def from_saved(saved: dict[str, Any]) -> schema.Config:
    """Returns the config whose fields are those of config.json; raises ValueError as `to_config`."""
    return _section(schema.Config, removed.without_removed(saved), "config")


def _section(kind: type, items: dict[str, Any], name: str) -> Any:
    hints = typing.get_type_hints(kind)
    items = {diff.RENAMED.get(key, key): value for key, value in items.items()}
    unknown = [key for key in items if key not in hints]
    if unknown:
        raise ValueError(f"{name} has no field {unknown[0]!r}.{specs.nearest(unknown[0], list(hints))}")
    values = {}
    for key, value in items.items():
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            value = _section(hints[key], value, f"{name}.{key}")
        elif isinstance(value, list):  # `to_dict` leaves a ConfigDict in a list.
            value = [each.to_dict() if isinstance(each, ml_collections.ConfigDict) else each for each in value]
        values[key] = value
    return kind(**values)
