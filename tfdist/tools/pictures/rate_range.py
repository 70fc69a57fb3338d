"""The picture of a learning-rate range test."""

from typing import Any

from tfdist.tools.pictures import style


def draw(found: Any, *, caption: str) -> Any:
    """Returns a figure: the loss by learning rate, each step and smoothed, with the suggested rate.

    Args:
        found: a `tfdist.tools.many_runs.lr_range.Range`.
    """
    figure, (axes,) = style.figure("Learning-rate range test", caption, size=(9.0, 5.0))
    axes.plot(found.rates, found.losses, color=style.GREY, linewidth=1.0, alpha=0.5, label="loss of a step")
    axes.plot(found.rates, found.smoothed, color=style.COLORS[0], label="smoothed")
    for rate, color, word, line in (
        (found.suggestion, style.COLORS[2], "suggested", "--"),
        (found.peak, style.COLORS[4], "with warm-up and decay", "-."),
        (found.lowest_at, style.COLORS[1], "smallest loss", ":"),
    ):
        axes.axvline(rate, color=color, linestyle=line, label=f"{word}: {rate:.2g}")
    low, high = min(found.smoothed), max(found.smoothed[: len(found.smoothed) // 2])
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.set_ylim(low - 0.15 * (high - low), high + 0.5 * (high - low))
    axes.legend(loc="lower left")
    return figure
