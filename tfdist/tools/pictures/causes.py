"""What the time of runs was spent on, as bars."""

from collections.abc import Sequence
from typing import Any

from tfdist.report import lines
from tfdist.tools.many_runs.bills import COUNT, Bill
from tfdist.tools.pictures import style

# More runs than this are not drawn one by one; the last bill, their sum, always is.
_MOST_BARS = 30
_SMALL = 0.002
_HATCHES = ("", "///", "...")


def draw(bills: Sequence[Bill]) -> Any:
    """Returns a figure with a bar for each bill: the parts of its time by cause, the useful one first."""
    shown = bills if len(bills) <= _MOST_BARS else [bills[-1]]
    caption = "Parts of the wall-clock time over all starts of each run."
    if len(shown) < len(bills):
        caption += f" The sum of {len(bills) - 1} runs."
    figure, (axes,) = style.figure("What the time was spent on", caption, size=(11.0, 1.6 + 0.45 * len(shown)))
    shares = [{cause: value / sum(bill.seconds.values()) for cause, value in bill.seconds.items()} for bill in shown]
    causes = [cause for cause in bills[0].seconds if any(share.get(cause, 0.0) > _SMALL for share in shares)]
    causes.sort(key=lambda cause: cause != COUNT)
    left = [0.0] * len(shown)
    for index, cause in enumerate(causes):
        widths = [share.get(cause, 0.0) for share in shares]
        hatch = _HATCHES[index // len(style.COLORS) % len(_HATCHES)]
        color = style.COLORS[index % len(style.COLORS)]
        axes.barh(range(len(shown)), widths, left=left, color=color, hatch=hatch, edgecolor="white", label=cause)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(shown)), [f"{bill.name}  {lines.duration(sum(bill.seconds.values()))}" for bill in shown])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside right upper")
    return figure
