"""The picture of the cost of all-reduces."""

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.tools.pictures import style

# Points of a curve.
_FINE = 200


def draw_all_reduce(
    rows: Sequence[tuple], predictions: Sequence[tuple], ring: Callable[[float], float], *, caption: str
) -> Any:
    """Returns a figure: all-reduce time by size, measured and by the ring's formula; step time by replicas.

    The rows are of `all_reduce.HEADER` and `all_reduce.STEP_HEADER`, the formula is bytes -> seconds.
    """
    import numpy as np
    from matplotlib import ticker

    figure, (left, right) = style.figure("Cost of an all-reduce", caption, columns=2, size=(12.5, 4.8))
    sizes, measured = [row[0] for row in rows], [row[2] for row in rows]
    fine = np.geomspace(sizes[0], sizes[-1], _FINE)
    left.plot(fine, [1e3 * ring(size) for size in fine], color=style.GREY, linestyle="--", label="formula of the ring")
    left.plot(sizes, measured, linestyle="none", **style.series(0), label="measured")
    for size, each in zip(sizes, measured, strict=True):
        style.value(left, size, each, f"{each:.3g}", color=style.COLORS[0])
    left.set(xscale="log", yscale="log", xlabel="bytes of the tensor", ylabel="milliseconds", title="All-reduce")
    # Labels of neighbours would cover each other: the largest size may be close to the one before.
    marked = [size for size in sizes[:-1] if 8 * size <= sizes[-1]] + sizes[-1:]
    left.set_xticks(marked, [_bytes(size) for size in marked])
    left.set_xticks([], minor=True)
    left.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("")
    left.margins(y=0.15)
    numbers, predicted = [row[0] for row in predictions], [row[1] for row in predictions]
    right.plot(
        numbers, predicted, color=style.GREY, linestyle="--", marker="o", markerfacecolor="white", label="predicted"
    )
    observed = [(row[0], row[2]) for row in predictions if row[2] is not None]
    right.plot(*zip(*observed, strict=True), linestyle="none", **style.series(0), label="measured")
    for number, each, row in zip(numbers, predicted, predictions, strict=True):
        style.value(right, number, each, f"{row[3]:.0%}")
    style.whole_numbers(right, numbers)
    right.set(title="Time of a step, and efficiency", xlabel="replicas", ylabel="milliseconds")
    right.set_ylim(0, 1.2 * max(predicted + [each for _, each in observed]))
    for axes in (left, right):
        axes.legend(loc="upper left")
    return figure


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    return ""
