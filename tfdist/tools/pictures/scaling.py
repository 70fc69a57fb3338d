"""Pictures of scaling studies: the courses' three plots, and what the time was spent on."""

import textwrap
from collections.abc import Sequence
from typing import Any

from tfdist.report import lines
from tfdist.tools import scaling_results
from tfdist.tools.pictures import style
from tfdist.tools.scaling_results import Study

# Points of a curve.
_FINE = 200
# If epochs differ in size by more than the factor _OTHER_SIZE, the time of _SAME examples is drawn instead.
_OTHER_SIZE, _SAME = 2.0, 1000
# Published times and throughputs that are so much more or less than one's own are not drawn: one would lie on the axis.
_FAR = 50.0


def draw(studies: Sequence[Study]) -> Any:
    """Returns a figure with three panels: time of an epoch, examples per second and speedup, each with its ideal.

    A marker is the median of the later epochs, and its bar their range. Published studies are drawn in grey. If their
    epochs have another size, the first panel has the time of 1,000 examples.
    """
    title = f"Scaling of {studies[0].name}" if len(studies) == 1 else "Scaling"
    figure, panels = style.figure(title, _caption(studies), columns=3, size=(15.0, 4.6))
    measured = [study for study in studies if not study.published] or list(studies)
    sizes = [point.examples for study in studies for point in study.points]
    same = _SAME if max(sizes) > _OTHER_SIZE * min(sizes) else None
    amounts = [_amounts(study, same) for study in studies]
    for number, axes in enumerate(panels):
        for index, study in enumerate(studies):
            largest = [max(amounts[place][number][0]) for place in (0, index)]
            if study.published and max(largest) > _FAR * min(largest):
                continue
            first = int(axes is panels[2])  # The first speedup is 1.
            named = range(first, len(study.points)) if len(measured) == 1 or study.published else ()
            _draw_points(axes, study, *amounts[index][number], index, named)
    _draw_ideals(panels, measured, max(study.points[-1].replicas for study in studies), same)
    titles = (
        (f"Time of {same:,} examples" if same else "Time of an epoch", "seconds"),
        ("Throughput", "examples per second"),
        ("Speedup", "relative to 1 replica"),
    )
    for axes, (title, label) in zip(panels, titles, strict=True):
        style.whole_numbers(axes, [point.replicas for study in studies for point in study.points])
        axes.set(title=title, ylabel=label, xlabel="replicas", ylim=(0, 1.12 * axes.get_ylim()[1]))
    handles = panels[2].get_legend_handles_labels()[0]
    style.legend(figure, handles)
    return figure


def draw_details(studies: Sequence[Study]) -> Any:
    """Returns a figure of what an epoch's time was spent on, and of the values after the same epochs."""
    known = {name for study in studies for point in study.points for name in point.values}
    values = [name for name in ("loss", "accuracy") if name in known]
    found = [(study.name, scaling_results.reason(study)) for study in studies]
    reasons = "\n".join(f"{name}: {reason}" for name, reason in found if reason)
    measured = [study for study in studies if any(point.shares for point in study.points)]
    columns = bool(measured) + len(values)
    title, caption = "Where the time goes, and what was learned", f"{reasons}\n{_caption(studies)}".strip()
    figure, panels = style.figure(title, caption, columns=columns, size=(5.0 * columns, 4.6))
    if measured:
        _draw_shares(panels[0], measured)
    for axes, name in zip(panels[bool(measured) :], values, strict=True):
        _draw_values(axes, studies, name)
    return figure


def has_details(studies: Sequence[Study]) -> bool:
    """Returns True if `draw_details` has something to draw."""
    return any(point.shares or point.values for study in studies for point in study.points)


def _amounts(study: Study, same: int | None = None) -> list[tuple[list[float], list[tuple[float, float]]]]:
    """Returns, for each panel, the median of each point and the range of its later epochs.

    The first panel shows the time of `same` examples; None: of an epoch.
    """
    base = study.points[0].examples_per_second / study.points[0].replicas
    found = []
    for amount in (
        lambda number, time: time * same / number if same else time,
        lambda number, time: number / time,
        lambda number, time: number / time / base,
    ):
        middle = [amount(point.examples, point.epoch_seconds) for point in study.points]
        every = [[amount(point.examples, time) for time in point.later_epoch_seconds] for point in study.points]
        found.append((middle, [(min(values), max(values)) for values in every]))
    return found


def _draw_points(
    axes: Any, study: Study, middle: list[float], ends: list[Any], index: int, named: Sequence[int]
) -> None:
    """Draws the curve of a study, and the values of the points `named`."""
    looks = _looks(study, index)
    numbers = [point.replicas for point in study.points]
    lower = [value - low for value, (low, _) in zip(middle, ends, strict=True)]
    upper = [high - value for value, (_, high) in zip(middle, ends, strict=True)]
    axes.errorbar(numbers, middle, yerr=[lower, upper], **looks, label=study.name, elinewidth=1.3, capthick=1.3)
    for point in named:
        style.value(axes, numbers[point], middle[point], lines.rate(middle[point]), color=looks["color"])


def _draw_values(axes: Any, studies: Sequence[Study], name: str) -> None:
    """Draws a value of the objective, such as the loss, after the same epochs of each training."""
    found = [(index, point) for index, study in enumerate(studies) for point in study.points if name in point.values]
    for index in dict.fromkeys(index for index, _ in found):
        points = [point for each, point in found if each == index]
        looks = _looks(studies[index], index)
        numbers, reached = [point.replicas for point in points], [point.values[name] for point in points]
        axes.plot(numbers, reached, **looks, label=studies[index].name)
        for number, value in zip(numbers, reached, strict=True):
            style.value(axes, number, value, f"{value:.3g}", color=looks["color"])
    style.whole_numbers(axes, [point.replicas for study in studies for point in study.points])
    top = (1.6 if len(studies) > 1 else 1.15) * axes.get_ylim()[1]  # Room for the legend.
    axes.set(title=f"{name.capitalize()} after the same epochs", xlabel="replicas", ylim=(0, top))
    if len(studies) > 1:
        axes.legend(loc="upper left")


def _draw_ideals(panels: Sequence[Any], studies: Sequence[Study], most: int, same: int | None) -> None:
    """Draws the ideal time (of `same` examples) and throughput of each study, and the speedup up to `most` replicas."""
    import numpy as np

    for index, study in enumerate(studies):
        first, last = study.points[0].replicas, study.points[-1].replicas
        numbers = np.linspace(first, max(last, first + 1e-6), _FINE)
        look = {"color": style.COLORS[index % len(style.COLORS)] if len(studies) > 1 else style.GREY, "linestyle": "--"}
        look |= {"linewidth": 1.6, "zorder": 1}
        rate = study.points[0].examples_per_second / first
        part = same / study.points[0].examples if same else 1.0
        panels[0].plot(numbers, part * study.ideal_seconds(numbers), **look)
        panels[1].plot(numbers, rate * numbers, **look)
    speedup = {"color": style.GREY, "linestyle": "--", "linewidth": 1.6, "zorder": 1, "label": "ideal"}
    panels[2].plot([1, most], [1, most], **speedup)


def _draw_shares(axes: Any, studies: Sequence[Study]) -> None:
    """Draws a stacked bar for each training: seconds of input, compute and communication in an epoch."""
    labels: list[str] = []
    middles: list[float] = []
    named: set[str] = set()
    for study in studies:
        middles.append(len(labels) + (len(study.points) - 1) / 2)
        for point in study.points:
            place, bottom = len(labels), 0.0
            colors = [style.COLORS[color] for color in (4, 0, 1)] if point.shares else ["lightgrey"]
            parts = point.part_seconds() if point.shares else {"not measured in parts": point.epoch_seconds}
            for color, (name, seconds) in zip(colors, parts.items(), strict=True):
                axes.bar(place, seconds, 0.7, bottom=bottom, color=color, label=None if name in named else name)
                bottom, named = bottom + seconds, {*named, name}
            style.value(axes, place, bottom, f"{lines.rate(bottom)} s")
            axes.hlines(study.ideal_seconds(point.replicas), place - 0.42, place + 0.42, color="black", linestyle="--")
            labels.append(f"{point.replicas}")
    axes.plot([], [], color="black", linestyle="--", label="ideal")
    axes.set_xticks(range(len(labels)), labels)
    if len(studies) > 1:  # Each name below the middle of its bars.
        axes.set_xticks(middles, [textwrap.fill(study.name, 18) for study in studies], minor=True)
        axes.tick_params(axis="x", which="minor", length=0, pad=22)
    axes.set(title="Time of an epoch", ylabel="seconds", xlabel="replicas", ylim=(0, 1.45 * axes.get_ylim()[1]))
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=2, loc="upper right")


def _looks(study: Study, index: int) -> dict[str, Any]:
    looks = style.series(index)
    return looks | {"color": style.GREY, "linestyle": ":", "markerfacecolor": "white"} if study.published else looks


def _caption(studies: Sequence[Study]) -> str:
    names = ["" if study.described.startswith(study.name) else f"{study.name}: " for study in studies]
    pairs = zip(names, studies, strict=True)
    return "\n".join(f"{name}{one.described}; {one.points[0].examples:,} examples in an epoch." for name, one in pairs)
