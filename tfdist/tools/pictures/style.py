"""One style for all pictures: sizes, colours, captions, files. Imports matplotlib in functions only.

The colours of series are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can
distinguish. Each series also has its own marker. Surfaces use matplotlib's cividis, for the same reason (Nunez et al.
2018, doi 10.1371/journal.pone.0199239). Equal data gives equal files.
"""

import io
import itertools
import json
import math
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
# Where a value may be, the best place first: shift from its point in points (1/72 inch), and alignment.
_PLACES = (
    ((0, 9), "center", "bottom"),
    ((6, 5), "left", "bottom"),
    ((-6, 5), "right", "bottom"),
    ((8, 0), "left", "center"),
    ((6, -5), "left", "top"),
    ((0, -10), "center", "top"),
    ((-6, -5), "right", "top"),
)
# Pixels at 100 dpi between a value and what is next to it.
_GAP = 4.0
# Settings of matplotlib. Text in SVG files stays text, which can be searched and edited; names there are not random.
_SETTINGS = Path(__file__).with_suffix(".json")


def save(path: Path, draw: Callable[[], Any]) -> str:
    """Draws a figure in this style, and writes it to `path`, without a suffix, as a PNG and an SVG file.

    `draw` is called only if matplotlib is installed. Returns the names of the files for the user, or `MISSING`.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        return MISSING
    with matplotlib.rc_context(json.loads(_SETTINGS.read_text())):
        figure = draw()
        _keep_dollars(figure)
        separate_values(figure)
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, dpi=DPI, metadata=metadata)
            files.replace_file(f"{path}.{suffix}", content.getvalue())
    return f"{path}.png, {path.name}.svg"


def _keep_dollars(figure: Any) -> None:
    """Lets matplotlib draw the dollars of names as they are: two of them would enclose a formula."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for text in figure.findobj(Text):
        text.set_text(text.get_text().replace("$", r"\$"))
    for formatter in {axis.get_major_formatter() for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)}:
        if isinstance(formatter, FuncFormatter):  # Of given labels; others write numbers, also as formulas.
            formatter.func = lambda *place, given=formatter.func: given(*place).replace("$", r"\$")


def figure(
    title: str, caption: str, *, columns: int = 1, rows: int = 1, size: tuple[float, float], share: str = ""
) -> tuple[Any, list[Any]]:
    """Returns a figure with a title above and a caption below, wrapped to the width, and its axes row by row.

    `size` is width and height of all axes together, in inches; `share`, "x", "y" or "xy": the scales that are the same.
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
    """Places one legend for all axes to the right of the title, in as many rows as it needs there."""
    # Inches: a letter of the bold title, a letter of the legend, and a line or marker with its space.
    letter, small, sample = 0.17, 0.1, 1.2
    space = figure.get_figwidth() - letter * len(figure.get_suptitle())
    lengths = [len(handle.get_label()) for handle in handles]
    for columns in range(len(lengths), 0, -1):
        rows = math.ceil(len(lengths) / columns)
        parts = [lengths[first : first + rows] for first in range(0, len(lengths), rows)]
        if sum(sample + small * max(part) for part in parts) <= space:
            break
    figure.legend(handles=handles, loc="outside upper right", ncols=columns)


def series(index: int) -> dict[str, Any]:
    """Returns colour and marker of a series: keywords of `Axes.plot`."""
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def whole_numbers(axes: Any, numbers: Sequence[int]) -> None:
    """Marks exactly these numbers on the x axis: in proportion, or, over a factor of more than 8, as powers of two."""
    numbers = sorted(set(numbers))
    if numbers[-1] > 8 * numbers[0]:
        axes.set_xscale("log", base=2)
        axes.set_xlim(numbers[0] / 1.3, numbers[-1] * 1.5)
    else:
        axes.set_xlim(0, 1.25 * numbers[-1])
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xticks([], minor=True)


def value(axes: Any, x: float, y: float, text: str, *, color: str = "black") -> None:
    """Writes the value of a point above it, from where `separate_values` may move it."""
    shift, horizontal, vertical = _PLACES[0]
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    look = {"ha": horizontal, "va": vertical, "fontsize": 11, "color": color, "bbox": box}
    axes.annotate(text, (x, y), xytext=shift, textcoords="offset points", **look)


def separate_values(figure: Any) -> None:
    """Moves each value that covers a curve, another value or an axis to the first of `_PLACES` that is free.

    Afterwards nothing may change the layout or the limits of the axes.
    """
    from matplotlib.text import Annotation

    figure.draw_without_rendering()  # Computes the layout.
    for axes in figure.axes:
        values = [text for text in axes.texts if isinstance(text, Annotation)]
        frame, curves, settled = axes.get_window_extent(), _pixels_of_curves(axes) if values else None, []
        for text in values:
            for shift, horizontal, vertical in (*_PLACES, _PLACES[0]):
                text.set(ha=horizontal, va=vertical)
                text.xyann = shift
                box = text.get_window_extent().padded(_GAP)
                inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
                if inside and not box.count_contains(curves) and not box.count_overlaps(settled):
                    break
            settled.append(box)


def _pixels_of_curves(axes: Any) -> Any:
    """Returns points on the lines of the axes, at most 2 pixels apart, [n, 2] in pixels."""
    import numpy as np

    found = [np.zeros((0, 2))]
    for line in axes.lines:
        points = line.get_transform().transform(line.get_xydata())
        found.append(points)
        for start, end in itertools.pairwise(points):
            fractions = np.linspace(0, 1, 2 + int(np.abs(end - start).max() / 2))[:, None]
            found.append(start + fractions * (end - start))
    return np.concatenate(found)
