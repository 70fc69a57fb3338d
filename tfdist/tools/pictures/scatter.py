"""A value of runs over a field of their configs: a point for each run, a line and a band over the seeds."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdist.tools import tables
from tfdist.tools.pictures import style

# Over this ratio of the largest to the smallest number, the x axis is logarithmic.
_WIDE = 20
# Up to so many numbers, the ticks of the x axis are these.
_MAX_TICKS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run: its place, and the series to which it belongs, such as "optimizer.momentum 0.9"."""

    x: Any
    y: float
    series: str = ""


def draw(points: Sequence[Point], *, x: str, y: str, caption: str) -> Any:
    """Returns a figure of the points: for each series the mean over equal x as a line, smallest to largest as a band.

    The values of the field `x` are numbers, or any others, which are then named on the axis.
    """
    figure, (axes,) = style.figure(f"{y} by {x}", caption, size=(9.0, 5.4))
    numbers = all(tables.is_number(point.x) for point in points)
    named = list(dict.fromkeys(str(point.x) for point in points))
    places = [point.x if numbers else named.index(str(point.x)) for point in points]
    if numbers and min(places) > 0 and max(places) > _WIDE * min(places):
        axes.set_xscale("log")
    if not numbers:
        axes.set_xticks(range(len(named)), named)
    elif len(set(places)) <= _MAX_TICKS:
        axes.set_xticks(sorted(set(places)), [f"{place:g}" for place in sorted(set(places))])
        axes.set_xticks([], minor=True)
    series = list(dict.fromkeys(point.series for point in points))
    for index, name in enumerate(series):
        by_place = collections.defaultdict(list)
        for place, point in zip(places, points, strict=True):
            if point.series == name:
                by_place[place].append(point.y)
        _draw_series(axes, dict(sorted(by_place.items())), name, index)
    axes.set(xlabel=x, ylabel=y)
    axes.margins(x=0.08, y=0.12)
    if len(series) > 1:
        axes.legend(loc="best", frameon=True, edgecolor="none")
    return figure


def _draw_series(axes: Any, by_place: dict[Any, list[float]], name: str, index: int) -> None:
    look = style.series(index)
    xs = [place for place, values in by_place.items() for _ in values]
    axes.plot(xs, [value for values in by_place.values() for value in values], linestyle="none", alpha=0.55, **look)
    means = [sum(values) / len(values) for values in by_place.values()]
    axes.plot(list(by_place), means, color=look["color"], label=name or None)
    if any(len(values) > 1 for values in by_place.values()):
        low, high = ([function(values) for values in by_place.values()] for function in (min, max))
        axes.fill_between(list(by_place), low, high, color=look["color"], alpha=0.18, linewidth=0)
