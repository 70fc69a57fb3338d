"""Turns an `ml_collections.ConfigDict` into a `schema.Config`, with the same names. Imports no TensorFlow."""

import dataclasses
import typing
from typing import Any

import ml_collections

from tfdist.config import diff, removed, schema, specs

# Names of sections that saved runs may have -> their names now.
_RENAMED = {"agreement": "consistency"}


def to_config(value: Any) -> Any:
    """Returns the `schema.Config` that a ConfigDict describes; any other value is returned as it is.

    A section may be a ConfigDict, a dict or the dataclass of `schema`; a field that is not there has its default.

    Raises:
        ValueError: a name is not a field of its section.
    """
    if not isinstance(value, ml_collections.ConfigDict):
        return value
    return _section(schema.Config, value.to_dict(), "config")


def from_saved(saved: dict[str, Any]) -> schema.Config:
    """Returns the config whose fields are those of config.json; a field that an earlier release lacked has its default.

    Raises:
        ValueError: a removed field affected the weights of the run, or an unknown one may have. Others are ignored.
    """
    return _section(schema.Config, {"model": {}} | saved, "config", saved=True)


def _section(kind: type, items: dict[str, Any], name: str, *, saved: bool = False) -> Any:
    hints, values = typing.get_type_hints(kind), {}
    for key, value in items.items():
        key = _RENAMED.get(key, key)
        if key not in hints:
            field = f"{name}.{key}"
            gone = removed.sentence(field)
            without_effect = gone and value == removed.TRAINED.get(field, value)
            if saved and (without_effect or not diff.affects_weights(field.removeprefix("config."))):
                continue
            unknown = f"{name} has no field {key!r}.{specs.nearest(key, list(hints))}"
            raise ValueError(f"{gone} Received: {value!r}" if gone else unknown)
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]):
            value = _section(hints[key], value, f"{name}.{key}", saved=saved)
        elif isinstance(value, list):  # `to_dict` leaves a ConfigDict in a list.
            value = [each.to_dict() if isinstance(each, ml_collections.ConfigDict) else each for each in value]
        values[key] = value
    return kind(**values)
