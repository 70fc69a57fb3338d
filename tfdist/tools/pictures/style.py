"""One style for all pictures: sizes, colours, captions, files. Imports matplotlib in functions only.

The colours of series are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can
distinguish. Each series also has its own marker. Surfaces use matplotlib's cividis, for the same reason (Nunez et al.
2018, doi 10.1371/journal.pone.0199239). Equal data gives equal files.
"""

import io
import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist.report import files

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6E6E6E"
SURFACE = "cividis"
DPI = 200
# Printed instead of file names.
MISSING = "no picture: pip install matplotlib, and run the command again"
# Settings of matplotlib. Text in SVG files stays text, which can be searched and edited; names there are not random.
_SETTINGS = Path(__file__).with_suffix(".json")


def save(path: Path, draw: Callable[[], Any]) -> str:
    """Draws a figure in this style, and writes it to `path`, without a suffix, as a PNG and an SVG file.

    `draw` is called only if matplotlib is installed. Returns the names of the files for the user, or `MISSING`.
    """
    try:
        import matplotlib
        from matplotlib.text import Text
    except ModuleNotFoundError:
        return MISSING
    with matplotlib.rc_context(json.loads(_SETTINGS.read_text())):
        figure = draw()
        for text in figure.findobj(Text):  # Matplotlib takes text between two dollar signs for a formula.
            text.set_parse_math("$" not in text.get_text())
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, dpi=DPI, metadata=metadata)
            files.replace_file(f"{path}.{suffix}", content.getvalue())
    return f"{path}.png, {path.name}.svg"


def figure(
    title: str, caption: str, *, columns: int = 1, rows: int = 1, size: tuple[float, float], share: str = ""
) -> tuple[Any, list[Any]]:
    """Returns a figure with a title above and a caption below, wrapped to the width, and its axes row by row.

    `size` is width and height of all axes together, in inches; `share`, "x", "y" or "xy": which axes the panels share.
    """
    from matplotlib.figure import Figure

    lines = [line for part in caption.split("\n") for line in textwrap.wrap(part, int(12.5 * size[0]))]
    made = Figure(figsize=(size[0], size[1] + 0.6 + 0.2 * len(lines)), layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share)
    made.suptitle(title, x=0.01, ha="left", fontsize=18, fontweight="bold")
    if lines:
        made.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=10, color=GREY)
    return made, [each for row in axes for each in row]


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Places one legend for all axes to the right of the title, in rows of four."""
    figure.legend(handles=handles, loc="outside upper right", ncols=min(4, len(handles)))


def series(index: int) -> dict[str, Any]:
    """Returns colour and marker of a series: keywords of `Axes.plot`."""
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def whole_numbers(axes: Any, numbers: Sequence[int]) -> None:
    """Marks exactly these numbers on the x axis; the axis is logarithmic if their ratio is above 8."""
    numbers = sorted(set(numbers))
    if numbers[-1] > 8 * numbers[0]:
        axes.set_xscale("log", base=2)
        axes.set_xlim(numbers[0] / 1.3, numbers[-1] * 1.5)
    else:
        axes.set_xlim(0, 1.25 * numbers[-1])
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xticks([], minor=True)


def value(axes: Any, x: float, y: float, text: str, *, color: str = "black", below: bool = False) -> None:
    """Writes the value of a point above it, or to the right and below it."""
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    place = (
        {"xytext": (6, -6), "ha": "left", "va": "top"} if below else {"xytext": (0, 9), "ha": "center", "va": "bottom"}
    )
    axes.annotate(text, (x, y), textcoords="offset points", fontsize=11, color=color, bbox=box, **place)
