"""The picture of the cost of all-reduces."""

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.tools.pictures import style

# Points of a curve.
_FINE = 200


def draw_all_reduce(rows: Sequence[tuple], ring: Callable[[float], float], *, caption: str) -> Any:
    """Returns a figure of the all-reduce time by size, measured and by the formula of the ring, bytes -> seconds.

    The rows are of `all_reduce.HEADER`.
    """
    import numpy as np
    from matplotlib import ticker

    figure, (axes,) = style.figure("Cost of an all-reduce", caption, size=(9.0, 5.4))
    sizes, measured = [row[0] for row in rows], [row[2] for row in rows]
    fine = np.geomspace(sizes[0], sizes[-1], _FINE)
    axes.plot(fine, [1e3 * ring(size) for size in fine], color=style.GREY, linestyle="--", label="formula of the ring")
    axes.plot(sizes, measured, linestyle="none", **style.series(0), label="measured")
    for size, each in zip(sizes, measured, strict=True):
        style.value(axes, size, each, f"{each:.3g}", color=style.COLORS[0])
    axes.set(xscale="log", yscale="log", xlabel="bytes of the tensor", ylabel="milliseconds")
    # Labels of neighbours would cover each other: the largest size may be close to the one before.
    marked = [size for size in sizes[:-1] if 8 * size <= sizes[-1]] + sizes[-1:]
    axes.set_xticks(marked, [_bytes(size) for size in marked])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.margins(y=0.15)
    axes.legend(loc="upper left")
    return figure


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    return ""
