"""The picture of a section of the benchmark."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.tools.pictures import style


def draw_ratios(rows: Sequence[Mapping[str, Any]], *, caption: str) -> Any:
    """Returns a figure of a section of the benchmark: a panel for each table, bars of its ratios to tfdist's median.

    Args:
        rows: of one section, as the benchmark writes them to a JSON file.
        caption: what was measured where.
    """
    titles = list(dict.fromkeys(row["title"] for row in rows))
    most = max(sum(row["title"] == title for row in rows) for title in titles)
    columns = min(2, len(titles))
    lines = math.ceil(len(titles) / columns)
    size = (max(10.0, 8.0 * columns), lines * (1.3 + 0.46 * most))
    figure, panels = style.figure(
        "Time relative to tfdist: shorter bars are faster", caption, columns=columns, rows=lines, size=size
    )
    for axes, title in zip(panels, titles, strict=False):
        _draw_bars(axes, title, [row for row in rows if row["title"] == title])
    for axes in panels[len(titles) :]:
        axes.remove()
    return figure


def _draw_bars(axes: Any, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    longest = max(row["ratio"] for row in rows)
    for place, row in enumerate(reversed(rows)):
        ours = row["ratio"] == 1.0
        axes.barh(place, row["ratio"], 0.7, color=style.COLORS[0 if ours else 5])
        text = f"{row['ratio']:.2f}  ({row['milliseconds']:.3g} ms)"
        axes.text(row["ratio"] + 0.02 * longest, place, text, va="center", fontsize=11)
    axes.axvline(1.0, color=style.GREY, linestyle="--", linewidth=1.5, zorder=0)
    axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    axes.set(xlabel="times tfdist's median", xlim=(0, 1.5 * longest))
    axes.set_title(title, fontsize=13, wrap=True)
    axes.grid(axis="y", visible=False)
