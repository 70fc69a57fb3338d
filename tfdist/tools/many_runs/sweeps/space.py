"""The values of a sweep: lists, ranges and intervals, as `--set FIELD=VALUES` and `get_sweep()` give them."""

import dataclasses
import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Overrides of one run: field or flag -> value as on a command line.
Overrides = dict[str, str]

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_INTERVAL = re.compile(r"(uniform|log|int)\(([^,()]+),([^,()]+)\)")
_NOTATION = "a list (0.1,0.2), a range of whole numbers (0..4), log(1e-5,1e-2), uniform(0,1) or int(16,256)"
# Digits of a number that is drawn, so that the name of its run shows all of it.
_DIGITS = 4
# Draws per run before fewer runs than wanted are taken, because most draws repeat.
_ATTEMPTS = 50
_LONGEST_LABEL = 40
# The most runs of a grid, because all are checked before the first one starts; the most values of a range.
_MAX_RUNS, _MAX_VALUES = 10_000, 1_000_000
# Bytes of the name of a run: file systems take 255, and files beside it may have longer names.
_LONGEST_NAME = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """An interval to draw from: uniform, uniform in the logarithm ("log"), or whole numbers ("int")."""

    kind: str
    low: float
    high: float

    def at(self, fraction: float) -> str:
        """Returns the number at a fraction of the interval, within [0, 1)."""
        if self.kind == "int":
            return str(math.floor(self.low + fraction * (self.high - self.low + 1)))
        if self.kind == "log":
            value = self.low * (self.high / self.low) ** fraction
        else:
            value = self.low + fraction * (self.high - self.low)
        return f"{value:.{_DIGITS}g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of the config, or a flag of a script, with its values or its interval."""

    name: str
    values: tuple[str, ...] = ()
    interval: Interval | None = None

    def draw(self, fraction: float) -> str:
        """Returns the value at a fraction within [0, 1)."""
        return self.interval.at(fraction) if self.interval else self.values[int(fraction * len(self.values))]


def parse(text: str) -> Field:
    """Reads `FIELD=VALUES`; raises ValueError if it has another form, or an interval is empty."""
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-").removeprefix("config.")
    if not name or not equals or not values.strip():
        raise ValueError(f"--set must be FIELD=VALUES, with {_NOTATION}. Received: {text!r}")
    return of_values(name, values.strip())


def of_values(name: str, values: Any) -> Field:
    """Returns the field of a text as in `--set`, or of a list of values as in `get_sweep()`; raises as `parse`."""
    if isinstance(values, list | tuple):
        return Field(name, tuple(each if isinstance(each, str) else repr(each) for each in values))
    text = str(values)
    if found := _INTERVAL.fullmatch(text):
        return Field(name, interval=_interval(name, *found.groups()))
    items: list[str] = []
    for item in _split(text):
        found = _RANGE.fullmatch(item)
        if found and int(found[1]) > int(found[2]):
            raise ValueError(f"--set {name}: the range {item} is empty: write the smaller number first.")
        if found and int(found[2]) - int(found[1]) >= _MAX_VALUES:
            raise ValueError(f"--set {name}: the range {item} is too long: draw with --random=N and int(LOW,HIGH).")
        items += map(str, range(int(found[1]), int(found[2]) + 1)) if found else [item]
    if "" in items or re.match(r"\w+\(", text):
        raise ValueError(f"--set {name} must be {_NOTATION}. Received: {text!r}")
    return Field(name, tuple(dict.fromkeys(items)))


def _interval(name: str, kind: str, low: str, high: str) -> Interval:
    try:
        ends = (float(low), float(high))
    except ValueError:
        raise ValueError(f"--set {name}: {kind}({low},{high}) must have two numbers.") from None
    valid = math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]
    if not valid or (kind == "log" and ends[0] <= 0) or (kind == "int" and any(end % 1 for end in ends)):
        need = {"log": ", both above 0", "int": ", both whole"}.get(kind, "")
        raise ValueError(f"--set {name}: {kind}({low},{high}) must have a lower and a higher number{need}.")
    return Interval(kind, *ends)


def _split(text: str) -> list[str]:
    """Splits at the commas that are in no bracket and in no quotes; raises ValueError if one of these is not closed."""
    items, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            items.append("")
        else:
            items[-1] += letter
    if quote or depth:
        raise ValueError(f"--set: a quotation mark or a bracket is without its other one. Received: {text!r}")
    return [item.strip() for item in items]


def grid(fields: Sequence[Field]) -> list[Overrides]:
    """Returns every combination of the values, the last field fastest; raises ValueError if a field has an interval."""
    for field in fields:
        if field.interval:
            raise ValueError(f"--set {field.name} is an interval, to draw from: add --random=N for N runs.")
    count = math.prod(len(field.values) for field in fields)
    if count > _MAX_RUNS:
        raise ValueError(f"--set: {count:,} runs are more than {_MAX_RUNS:,}: draw some of them with --random=N.")
    names = [field.name for field in fields]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*(field.values for field in fields))]


def draws(fields: Sequence[Field], count: int, seed: int) -> list[Overrides]:
    """Returns `count` different random combinations, fewer if there are not so many.

    Draw i of a field depends on `seed`, the field's name and i only: a larger `count` keeps the ones before.
    """
    found: dict[tuple[str, ...], Overrides] = {}
    for index in range(_ATTEMPTS * count):
        row = {field.name: field.draw(random.Random(f"{seed}/{field.name}/{index}").random()) for field in fields}
        found.setdefault(tuple(row.values()), row)
        if len(found) == count:
            break
    return list(found.values())


def names(rows: Sequence[Overrides]) -> list[str]:
    """Returns the name of each run, which is its directory: "peak=0.1_seed=3"; the same for the same overrides."""
    fields = list(dict.fromkeys(name for row in rows for name in row))
    short = dict(_short(fields))
    found = ["_".join(f"{short[name]}={_label(value)}" for name, value in row.items()) for row in rows]
    unclear = {name for name in found if found.count(name) > 1 or len(name.encode()) > _LONGEST_NAME}
    return [with_digest(name, row) if name in unclear else name for name, row in zip(found, rows, strict=True)]


def with_digest(name: str, row: Overrides) -> str:
    """Returns the name of a run with a hash of its overrides; a long one is cut."""
    return f"{name.encode()[:_LONGEST_NAME].decode(errors='ignore')}_{_digest(repr(row))}"


def _short(fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each name with its shortest end that no other name has."""
    for field in fields:
        parts = field.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [f".{other}" for other in fields if other != field]
        yield field, next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), field)


def _label(value: str) -> str:
    plain = re.sub(r"[^\w.+-]+", "-", value).rstrip("-")
    plain = (plain if value.startswith("-") else plain.lstrip("-")) or "empty"
    return plain if len(plain) <= _LONGEST_LABEL else f"{plain[:_LONGEST_LABEL]}-{_digest(value)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def as_fields(given: Mapping[str, Any], typed: Sequence[str]) -> list[Field]:
    """Returns the fields of `get_sweep()` and those of `--set`, which replace them by name.

    Raises as `parse`, or if a field is typed twice.
    """
    found = {name: of_values(name, values) for name, values in given.items()}
    fields = [parse(text) for text in typed]
    for field in fields:
        if sum(other.name == field.name for other in fields) > 1:
            raise ValueError(f"--set {field.name} is given twice: write all its values in one list.")
        found[field.name] = field
    return list(found.values())
