"""Pictures of the CSCS laboratory: the trajectories of its stages, its data with the fitted line, and its losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.tools.pictures import style, surface

# As in the laboratory: levels of the contours, the first of them labelled; the first step of the loss curves.
_LEVELS, _LABELLED, _FIRST_STEP = 50, 6, 10
Points = tuple[np.ndarray, np.ndarray]


def draw_paths(
    paths: Mapping[str, Sequence[np.ndarray]],
    points: Points,
    truth: tuple[float, float],
    titles: Mapping[str, str],
    *,
    caption: str,
) -> Any:
    """Returns a figure with a panel for each stage: the trajectory of each worker over the loss surface.

    Args:
        paths: stage -> of each worker float64 [steps + 1, 2], slope and intercept.
        points: x and y of worker 0, float64 [points] each.
        truth: slope and intercept of the line that the points were drawn from: the red cross.
        titles: stage -> its title.
        caption: what was trained.
    """
    figure, panels = style.figure(
        "From workers alone to data-parallel training", caption, columns=2, rows=2, size=(12.5, 9.0), share="xy"
    )
    every = [path for workers in paths.values() for path in workers]
    box = surface.limits([*every, np.array([truth])])
    grid = [np.linspace(*each, 160) for each in box]
    heights = surface.errors(*points, *grid)
    for axes, (name, workers) in zip(panels, paths.items(), strict=True):
        drawn = axes.contour(*grid, heights, levels=_LEVELS, alpha=0.6, cmap=style.SURFACE, linewidths=1.2)
        axes.clabel(drawn, drawn.levels[1 : 1 + _LABELLED], fontsize=9)
        for rank, path in enumerate(workers):
            look = {
                "linewidth": 5.0 - 3.2 * min(rank, 1),
                "alpha": 0.9 if rank else 0.6,
                "markersize": 10 - 5 * min(rank, 1),
            }
            axes.plot(*path.T, marker=".", color=style.COLORS[rank % 7], label=f"worker {rank}", **look)
            axes.plot(*path[0], "o", markersize=9, markerfacecolor="white", markeredgecolor=style.COLORS[rank % 7])
        axes.plot(*truth, "x", color="#CC0000", markersize=12, markeredgewidth=3, linestyle="none", label="true line")
        axes.set_title(titles[name])
        axes.grid(visible=False)
    for axes in panels[2:]:
        axes.set_xlabel("slope")
    for axes in panels[::2]:
        axes.set_ylabel("offset")
    figure.colorbar(drawn, ax=panels, label="mean squared error", pad=0.01)
    handles = panels[0].get_legend_handles_labels()[0]
    style.legend(figure, handles)
    return figure


def draw_fit(
    found: Mapping[str, Sequence[Mapping[str, np.ndarray]]], points: Points, truth: tuple[float, float], *, caption: str
) -> Any:
    """Returns a figure: the points with the line before and after training, and the loss of each worker by step."""
    figure, (left, right) = style.figure("The data, and the loss of each stage", caption, columns=2, size=(12.5, 4.8))
    x, y = points
    left.plot(x, y, ".", color=style.GREY, alpha=0.35, markersize=5, markeredgewidth=0, label="points")
    ends = np.array([x.min(), x.max()])
    path = next(reversed(found.values()))[0]["weights"]
    for weights, color, line, label in (
        (path[0], style.COLORS[1], "--", "before training"),
        (path[-1], style.COLORS[0], "-", f"fitted: {path[-1][0]:.2f} x {path[-1][1]:+.2f}"),
    ):
        left.plot(ends, weights[0] * ends + weights[1], color=color, linestyle=line, label=label)
    left.set(title="Data and line", xlabel="x", ylabel="y")
    left.legend()
    for index, (name, workers) in enumerate(found.items()):
        for rank, each in enumerate(workers):
            steps = np.arange(len(each["loss"]))[_FIRST_STEP:]
            look = {"color": style.COLORS[index], "linestyle": "-" if rank == 0 else "--", "linewidth": 2.2}
            right.plot(steps, each["loss"][_FIRST_STEP:], **look, label=f"{name}, worker {rank}")
    right.set(title=f"Loss from step {_FIRST_STEP} on", xlabel="step", ylabel="mean squared error")
    right.legend(ncols=2)
    return figure
