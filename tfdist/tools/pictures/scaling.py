"""The picture of scaling studies: what the time is spent on, examples per second, and speedup."""

import textwrap
from collections.abc import Sequence
from typing import Any

from tfdist.report import lines
from tfdist.tools import scaling_results
from tfdist.tools.pictures import style
from tfdist.tools.scaling_results import Study

_COLORS = dict(zip(scaling_results.CAUSES, (style.COLORS[number] for number in (4, 0, 1)), strict=True))


def draw(studies: Sequence[Study]) -> Any:
    """Returns a figure with three panels: time of an epoch by its parts, examples per second, speedup; with the ideals.

    The time is for the same number of examples on each number of replicas, so that ratios are speedups. A marker is the
    median of the later epochs, and its bar their range. For published studies, which ran on other hardware, only the
    speedup is drawn, in grey.
    """
    measured = [study for study in studies if not study.published] or list(studies)
    title = f"Scaling of {measured[0].name}" if len(measured) == 1 else "Scaling"
    figure, panels = style.figure(title, _caption(studies), columns=3, size=(15.0, 4.6))
    _draw_times(panels[0], measured)
    for index, study in enumerate(studies):
        look = style.series(index)
        if study.published:
            look |= {"color": style.GREY, "linestyle": ":", "markerfacecolor": "white"}
        base = study.points[0].examples_per_second / study.points[0].replicas
        for axes, unit in ((panels[1], 1.0), (panels[2], base)):
            if study in measured or axes is panels[2]:
                _draw_points(axes, study, unit, look, with_values=len(measured) == 1 and study in measured)
        if study in measured:
            ends = [study.points[0].replicas, study.points[-1].replicas]
            panels[1].plot(ends, [base * end for end in ends], color=look["color"], linestyle="--", linewidth=1.6)
    most = max(study.points[-1].replicas for study in studies)
    panels[2].plot([1, most], [1, most], color=style.GREY, linestyle="--", linewidth=1.6, zorder=1, label="ideal")
    for axes, title, label, shown in (
        (panels[1], "Throughput", "examples per second", measured),
        (panels[2], "Speedup", "relative to 1 replica", studies),
    ):
        style.whole_numbers(axes, [point.replicas for study in shown for point in study.points])
        axes.set(title=title, ylabel=label, xlabel="replicas", ylim=(0, 1.12 * axes.get_ylim()[1]))
    style.legend(figure, panels[2].get_legend_handles_labels()[0])
    return figure


def _draw_points(axes: Any, study: Study, unit: float, look: dict[str, Any], *, with_values: bool) -> None:
    """Draws the examples per second of a study in units of `unit`, and writes their values if `with_values`."""
    numbers = [point.replicas for point in study.points]
    middle = [point.examples_per_second / unit for point in study.points]
    ends = [[point.examples / time / unit for time in point.later_epoch_seconds] for point in study.points]
    lower = [value - min(values) for value, values in zip(middle, ends, strict=True)]
    upper = [max(values) - value for value, values in zip(middle, ends, strict=True)]
    axes.errorbar(numbers, middle, yerr=[lower, upper], **look, label=study.name, elinewidth=1.3, capthick=1.3)
    for number, each in zip(numbers, middle, strict=True) if with_values else ():
        style.value(axes, number, each, lines.rate(each), color=look["color"], below=True)


def _draw_times(axes: Any, studies: Sequence[Study]) -> None:
    """Draws a bar for each training: seconds of input, compute and communication, and its ideal as a dashed line."""
    labels: list[str] = []
    middles: list[float] = []
    named: set[str] = set()
    for study in studies:
        middles.append(len(labels) + (len(study.points) - 1) / 2)
        for point in study.points:
            place, bottom, seconds = len(labels), 0.0, study.seconds(point)
            shares = dict(zip(scaling_results.CAUSES, point.shares or (), strict=False))
            for name, share in (shares or {"not measured in parts": 1.0}).items():
                look = {"color": _COLORS.get(name, "lightgrey"), "label": None if name in named else name}
                axes.bar(place, share * seconds, 0.7, bottom=bottom, **look)
                bottom, named = bottom + share * seconds, {*named, name}
            style.value(axes, place, bottom, f"{lines.rate(seconds)} s")
            axes.hlines(study.ideal_seconds(point.replicas), place - 0.42, place + 0.42, color="black", linestyle="--")
            labels.append(f"{point.replicas}")
    axes.plot([], [], color="black", linestyle="--", label="ideal")
    axes.set_xticks(range(len(labels)), labels)
    if len(studies) > 1:  # Each name below the middle of its bars.
        axes.xaxis.remove_overlapping_locs = False
        axes.set_xticks(middles, [textwrap.fill(study.name, 18) for study in studies], minor=True)
        axes.tick_params(axis="x", which="minor", length=0, pad=22)
    axes.set(title="Time of an epoch", ylabel="seconds", xlabel="replicas", ylim=(0, 1.45 * axes.get_ylim()[1]))
    axes.grid(axis="x", visible=False)
    axes.legend(ncols=2, loc="upper right")


def _caption(studies: Sequence[Study]) -> str:
    """Returns what was trained and where, a line for each study, and why the last speedup is not the ideal one."""
    found = []
    for one in studies:
        name = "" if one.described.startswith(one.name) else f"{one.name}: "
        found.append(f"{name}{one.described}; {one.points[0].examples:,} examples in an epoch.")
    reasons = [(one.name, scaling_results.reason(one)) for one in studies]
    return "\n".join([*found, *(f"{name}: {why}" if len(studies) > 1 else why for name, why in reasons if why)])
