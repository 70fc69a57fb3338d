"""The picture of the usual mistakes of data-parallel training, each beside the right run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.tools.pictures import style


def draw(
    tests: Mapping[str, Sequence[np.ndarray]],
    table: Sequence[tuple],
    right: str,
    titles: Mapping[str, str],
    *,
    caption: str,
) -> Any:
    """Returns a figure with a panel for each mistake: the accuracy of each worker by epoch, and that of the right run.

    Args:
        tests: training -> of each worker the accuracy after each epoch, float64 [epochs].
        table: of `mistakes.HEADER`.
        right: the name of the right training.
        titles: mistake -> what it does.
        caption: what was trained.
    """
    figure, panels = style.figure(
        "Mistakes in data-parallel training", caption, columns=3, rows=2, size=(15.0, 8.0), share="xy"
    )
    rows = {row[0]: row for row in table}
    for axes, (name, meaning) in zip(panels, titles.items(), strict=True):
        epochs = np.arange(1, 1 + len(tests[right][0]))
        axes.plot(epochs, tests[right][0], color=style.GREY, linestyle="--", label="right")
        for rank, each in enumerate(tests[name]):
            look = style.series(rank) | {"linewidth": 1.8, "markersize": 5, "alpha": 0.9}
            axes.plot(epochs, each, **look, label=f"worker {rank}")
        _, mean, _, apart, missed = rows[name]
        notes = [f"accuracy {mean:.1%}, right {rows[right][1]:.1%}"]
        notes += [f"weights apart {apart:.2g}"] if apart > 1e-6 else []
        notes += [f"{missed:.0%} of the examples not seen in an epoch"] if missed > 0.005 else []
        axes.text(0.97, 0.03, "\n".join(notes), transform=axes.transAxes, ha="right", va="bottom", fontsize=11)
        axes.set_title(f"{name}\n{meaning}", fontsize=13)
        axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(-0.25, 1.03))
        axes.set_yticks(np.linspace(0, 1, 6))  # The space below 0 is for the notes.
        axes.label_outer()
    handles = panels[0].get_legend_handles_labels()[0]
    style.legend(figure, handles)
    return figure
