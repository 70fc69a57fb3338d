"""Splits in the notation of TensorFlow Datasets: "train", "train[:90%]", "train[45000:]". No TensorFlow."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

# The splits that tfdist makes for data without splits.
BY_RATIO = ("train", "test", "all")
_SPLIT = re.compile(r"(?P<name>[^\[\]]+)(?:\[(?P<start>[^:\[\]]*):(?P<stop>[^:\[\]]*)\])?")
_BOUND = re.compile(r"(?P<value>-?\d[\d_]*(?:\.\d+(?=%))?)(?P<unit>%?)")
_NOTATION = 'Splits are written "train", "train[:90%]", "train[10%:20%]", "train[45000:]" or "train[-5000:]".'


class Slice(NamedTuple):
    """Examples `start` (included) to `stop` (excluded) of the split `name`."""

    name: str
    start: int
    stop: int


def split_name(split: str, names: Iterable[str], *, source: str) -> str:
    """Returns the name in `split`, "train" in "train[:90%]"; raises ValueError if the notation or name is invalid."""
    match = _SPLIT.fullmatch(split)
    if match is None:
        raise ValueError(f"{source}: the split {split!r} is not valid. {_NOTATION}")
    if match["name"] not in (existing := sorted(names)):
        raise ValueError(f"{source} has no split {match['name']!r}. It has: {', '.join(existing) or 'none'}.")
    return match["name"]


def resolve(split: str, lengths: Mapping[str, int], *, source: str) -> Slice:
    """Returns the examples that `split` selects.

    Percentages are rounded to the nearest example as tfds rounds them (`round(percent * length / 100)`), negative
    bounds count from the end, and a unit at one bound applies to both ("train[10:20%]" is 10 % to 20 %).

    Raises ValueError if the notation of `split` is not valid, or it does not exist, exceeds its bounds, or is empty.
    """
    name = split_name(split, lengths, source=source)
    length = lengths[name]
    match = _SPLIT.fullmatch(split)
    if match["start"] is None:
        start, stop = 0, length
    else:
        start, stop = _bounds(split, match["start"], match["stop"], length, source)
    if stop <= start:
        raise ValueError(f"{source}: the split {split!r} is empty: {name!r} has {length} examples.")
    return Slice(name, start, stop)


def by_ratio(split: str, count: int, *, test_fraction: float, source: str) -> tuple[np.ndarray, Slice]:
    """Divides examples that have no splits into "train" and "test", at random and always in the same way.

    Returns the examples of the split, int64 [n], and the range of them that a slice selects; raises as `resolve`.

    Args:
        count: the number of examples; of two or more, each split gets at least one.
        test_fraction: the part of the examples in "test", between 0 and 1.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"{source}: test_fraction must be between 0 and 1. Received: {test_fraction!r}")
    name = split_name(split, BY_RATIO, source=source)
    tests = min(max(1, round(test_fraction * count)), max(0, count - 1))
    order = np.random.RandomState(0).permutation(count)  # Stable across NumPy versions.
    rows = {"train": order[tests:], "test": order[:tests], "all": order}[name]
    return rows, resolve(split, {name: len(rows)}, source=source)


def _bounds(split: str, first: str, last: str, length: int, source: str) -> tuple[int, int]:
    matches = [_BOUND.fullmatch(text) for text in (first, last)]
    if any(text and not match for text, match in zip((first, last), matches, strict=True)) or not any(matches):
        raise ValueError(f"{source}: the slice of {split!r} is not valid. {_NOTATION}")
    percent = any(match and match["unit"] for match in matches)
    bounds = []
    for match, default in zip(matches, (0, length), strict=True):
        if match is None:
            bounds.append(default)
        elif percent:
            bounds.append(round(float(match["value"]) * length / 100.0))
        else:
            bounds.append(int(match["value"]))
    if any(abs(bound) > length for bound in bounds):
        raise ValueError(f"{source}: the split {split!r} exceeds its {length} examples.")
    return tuple(bound + length if bound < 0 else bound for bound in bounds)
