"""Turns an `ml_collections.ConfigDict` into a `schema.Config`, with the same names. Imports no TensorFlow."""

import dataclasses
import typing
from typing import Any

import ml_collections

from tfdist.config import removed, schema, specs

# Names of sections that saved runs may have -> their names now.
_RENAMED = {"agreement": "consistency"}


def to_config(value: Any) -> Any:
    """Returns the `schema.Config` that a ConfigDict describes; any other value is returned as it is.

    A section may be a ConfigDict, a dict or the dataclass of `schema`; a field that is not there has its default.

    Raises:
        ValueError: a name is no field of its section.
    """
    if not isinstance(value, ml_collections.ConfigDict):
        return value
    return _section(schema.Config, value.to_dict(), "config")


def from_saved(saved: dict[str, Any]) -> schema.Config:
    """Returns the config whose fields are those of config.json; a field that an earlier release lacked has its default.

    Raises:
        ValueError: as `to_config`, and as `removed.drop_fields`.
    """
    return _section(schema.Config, {"model": {}} | removed.drop_fields(saved), "config")


def _section(kind: type, items: dict[str, Any], name: str) -> Any:
    hints = typing.get_type_hints(kind)
    items = {_RENAMED.get(key, key): value for key, value in items.items()}
    unknown = [key for key in items if key not in hints]
    if unknown:
        gone = removed.sentence(f"{name}.{unknown[0]}")
        raise ValueError(gone or f"{name} has no field {unknown[0]!r}.{specs.nearest(unknown[0], list(hints))}")
    values = {}
    for key, value in items.items():
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            value = _section(hints[key], value, f"{name}.{key}")
        elif isinstance(value, list):  # `to_dict` leaves a ConfigDict in a list.
            value = [each.to_dict() if isinstance(each, ml_collections.ConfigDict) else each for each in value]
        values[key] = value
    return kind(**values)
