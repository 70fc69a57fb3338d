"""Fields of runs by name, and the runs whose fields satisfy conditions: `--where "learning_rate.peak>0.1"`."""

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfdist.config import text
from tfdist.tools import tables
from tfdist.tools.many_runs.run_state import RunState

# Fields of `RunState` that have one value.
PLAIN = ("state", "step", "epoch", "epochs", "examples_per_second", "hours", "replicas", "job", "trouble")
# Fields of `RunState` with a value for each name, and what their names begin with.
_NAMED = {"best": "best", "last": "last", "train": "training"}
_CONDITION = re.compile(r"\s*([\w.\-/ ]+?)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*?)\s*$")
# Between two conditions; the names of runs may have commas and equals signs.
_NEXT = r"(?=(?:(?!\band\b)[\w.\-/ ])+[<>!=~])"
_BETWEEN, _AFTER_RUN = re.compile(rf"(?:,|\band\b){_NEXT}"), re.compile(rf"\band\b{_NEXT}")
_OF_RUN = re.compile(r"\s*run\s*(=|~|!=)")
_WORDS = {"none": None, "true": True, "false": False}


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field with a value: `name`, one of < <= > >= = != ~ (contains), and the text of the value."""

    name: str
    operator: str
    text: str

    def holds(self, value: Any) -> bool:
        """Returns whether it holds for the value of a field; a field without a value satisfies only = and !=."""
        if self.operator == "~":
            return self.text in f"{value}"
        wanted = _value(self.text)
        if self.operator in ("=", "!="):
            return (value == wanted or f"{value}" == self.text) == (self.operator == "=")
        if not _is_number(value) or not _is_number(wanted):
            return False
        return {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[self.operator]


def values(run: RunState) -> dict[str, Any]:
    """Returns the fields of a run by name: "state", "best.accuracy", "training.loss", "learning_rate.peak"."""
    found = {"run": short(run.workdir)} | {name: getattr(run, name) for name in PLAIN}
    for field, prefix in _NAMED.items():
        found |= {f"{prefix}.{name}": value for name, value in getattr(run, field).items()}
    return dict(run.config) | found


def short(path: Path) -> str:
    """Returns a path for a reader: relative to the working directory, if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def conditions(words: Iterable[str]) -> list[Condition]:
    """Parses conditions; raises ValueError if a text is no condition.

    Several in one text are separated by commas or "and", after one of the run by "and" only.
    """
    found = []
    parts = [(_AFTER_RUN if _OF_RUN.match(word) else _BETWEEN).split(word) for word in words]
    for part in itertools.chain.from_iterable(parts):
        match = _CONDITION.match(part)
        if match is None or (match[2] in ("<", "<=", ">", ">=") and not _is_number(_value(_plain(match[3])))):
            raise ValueError(
                f"--where={part.strip()!r} is no condition: write NAME, one of < <= > >= = != ~ (contains), and a "
                'value, such as "learning_rate.peak>0.1".'
            )
        name, operator, value = match.groups()
        found.append(Condition(name, "=" if operator == "==" else operator, _plain(value)))
    return found


def _plain(value: str) -> str:
    return value.strip("'\"")


def resolve(name: str, known: Sequence[str]) -> str:
    """Returns the field of `known` that `name` means: itself, the end of one name, or the best value of a metric.

    Raises ValueError if no field has this name, or several end with it.
    """
    if name in known:
        return name
    endings = [each for each in known if each.endswith(f".{name}")]
    if f"best.{name}" in endings:
        return f"best.{name}"
    if len(endings) == 1:
        return endings[0]
    if endings:
        raise ValueError(f"{name!r} may be {', '.join(endings)}: write one of them.")
    near = text.closest(name, list(known), 0.6)
    raise ValueError(f"No run has a field {name!r}.{f' Nearest: {near}.' if near else ''}")


def select(rows: Sequence[dict[str, Any]], wanted: Sequence[Condition]) -> list[dict[str, Any]]:
    """Returns the rows, of `values`, for which all conditions hold; raises ValueError as `resolve`."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    named = [(resolve(each.name, known), each) for each in wanted]
    return [row for row in rows if all(each.holds(row.get(name)) for name, each in named)]


def sort(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the rows by a field, smallest first, or largest first if `name` begins with a minus.

    Rows without it come last. Raises as `resolve`.
    """
    known = list(dict.fromkeys(each for row in rows for each in row))
    field, falls = resolve(name.removeprefix("-"), known), name.startswith("-")
    there = [row for row in rows if row.get(field) is not None]
    there.sort(key=lambda row: (not _is_number(row[field]), row[field] if _is_number(row[field]) else f"{row[field]}"))
    return [*(reversed(there) if falls else there), *(row for row in rows if row.get(field) is None)]


def _value(word: str) -> Any:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return float(word)
    except ValueError:
        return word


def _is_number(value: Any) -> bool:
    return tables.is_number(value) and not math.isnan(value)
