"""What earlier releases had and this one has not, each with what to use instead. Imports no TensorFlow.

A command line or a config that names one of these gets its sentence, and no guess at a similar name.
"""

import re
from collections.abc import Iterator
from typing import Any

# A removed field whose value had a meaning only beside another one: saved configs may have any.
ANY = object()
# Field of a config -> (its default, what to use instead). A saved config may have the default.
FIELDS: dict[str, tuple[Any, str]] = {
    # A run that has paused goes on.
    "cluster.pause_epochs": (ANY, "a file STOP in the workdir stops and saves a run, and the same command goes on."),
}
# (field that still exists, value that it had) -> what to use instead.
VALUES: dict[tuple[str, Any], str] = {}
# Command -> what to use instead.
COMMANDS: dict[str, str] = {
    "completion": "tfdist COMMAND --help lists the flags of a command, and with a config its fields.",
    "lr_range": "train with --config.learning_rate.schedule.target=tfdist.zoo.schedules:range_test, and draw the loss "
    "with tfdist plot RUN --x=learning_rate (docs/sweeps.md).",
    "recipes": "tfdist runs lists runs with their configs and results.",
}
# Flag of a command that still exists -> what to use instead.
FLAGS: dict[str, str] = {
    "prune": "all runs of a sweep train to their end; a file STOP in the workdir of a run stops it.",
    **dict.fromkeys(
        ("pruner", "sampler", "suggest"),
        "draw the runs with --random=N, or let an objective of Optuna call tfdist train.",
    ),
}
# Module of tfdist, or function as in a target, that configs may have named -> what to use instead.
MODULES: dict[str, str] = {
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
    """Returns the sentence for a module of tfdist, or a function as in a target; "": there was none of this name."""
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
