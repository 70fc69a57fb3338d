"""What earlier releases had and this one has not, each with what to use instead. Imports no TensorFlow.

A command line or a config that names one of these gets its sentence, and no guess at a similar name.
"""

import re
from collections.abc import Iterator
from typing import Any

# A removed field whose value had a meaning only beside another one: saved configs may have any.
ANY = object()
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
}
# (field that still exists, value that it had) -> what to use instead.
VALUES: dict[tuple[str, Any], str] = {}
# Command -> what to use instead.
COMMANDS: dict[str, str] = {}
# Flag of a command that still exists -> what to use instead.
FLAGS: dict[str, str] = {}
# Module of tfdist that configs may have named -> what to use instead.
MODULES: dict[str, str] = {}


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
    """Returns the sentence for an error of a config file that sets or names a removed field or section; else ""."""
    if not isinstance(error, TypeError | AttributeError):
        return ""
    for word in re.findall(r"'(\w+)'", str(error))[-1:]:
        for field in FIELDS:
            parts = field.split(".")
            if word.lower() in parts[1:]:
                return of_field(".".join(parts[: parts.index(word.lower()) + 1]))
    return ""


def of_command(name: str) -> str:
    """Returns the sentence for a command; "": there was none of this name."""
    return f"tfdist {name} was removed: {COMMANDS[name]}" if name in COMMANDS else ""


def of_flag(name: str) -> str:
    """Returns the sentence for a flag, without its dashes; "": there was none of this name."""
    return f"--{name} was removed: {FLAGS[name]}" if name in FLAGS else ""


def of_module(name: str) -> str:
    """Returns the sentence for a module of tfdist; "": there was none of this name."""
    return f"{name} was removed: {MODULES[name]}" if name in MODULES else ""


def without_removed(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved config without removed fields.

    Raises:
        ValueError: one of them has a value other than its default, or a field has a value that was removed.
    """
    problems = list(_problems(saved, ""))
    if problems:
        raise ValueError("The saved config cannot be used any more:\n" + "\n".join(f"  {line}" for line in problems))
    return _kept(saved, "")


def _problems(section: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in section.items():
        name = f"{prefix}{key}"
        if name in FIELDS:
            if FIELDS[name][0] is not ANY and value != FIELDS[name][0]:
                yield f"{of_field(name)} Received: {value!r}"
        elif isinstance(value, dict):
            yield from _problems(value, f"{name}.")
        elif sentence := of_value(name, value):
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
