"""Pictures over the loss surface of a line y = m x + n: the trajectories of its parameters during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.tools.pictures import style

# Replicas are drawn one over the other: from wide and light to narrow.
_WIDTHS = (7.0, 3.0, 1.2)
_MARGIN = 0.15


def errors(x: np.ndarray, y: np.ndarray, slopes: np.ndarray, intercepts: np.ndarray) -> np.ndarray:
    """The mean squared error of points on a grid of lines, float64 [len(intercepts), len(slopes)].

    Args:
        x: float64 [points].
        y: float64 [points].
        slopes: of the columns.
        intercepts: of the rows.
    """
    # E(m x + n - y)^2 from the moments of the points: the grid may be fine and the points many.
    m, n = slopes[np.newaxis, :], intercepts[:, np.newaxis]
    mean = {"xx": np.mean(x * x), "x": np.mean(x), "xy": np.mean(x * y), "y": np.mean(y), "yy": np.mean(y * y)}
    return m * m * mean["xx"] + n * n + mean["yy"] + 2 * (m * n * mean["x"] - m * mean["xy"] - n * mean["y"])


def minimum(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and intercept of the least squared error."""
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope), float(intercept)


def draw(
    trajectories: Mapping[tuple[int, int], np.ndarray], x: np.ndarray, y: np.ndarray, *, caption: str, skipped: str = ""
) -> Any:
    """Returns a figure with a panel for each batch size: the trajectory on each number of replicas.

    Args:
        trajectories: (batch size, replicas) -> float64 [steps, 2], the slope and intercept before each step.
        x: of the training points, float64 [points].
        y: of the same points, float64 [points].
        caption: what was trained.
        skipped: why a batch size has fewer trajectories; added to the caption.
    """
    batches = sorted({batch for batch, _ in trajectories})
    numbers = sorted({replicas for _, replicas in trajectories})
    figure, panels = style.figure(
        "Gradient descent over the loss surface",
        "\n".join(filter(None, [caption, skipped])),
        columns=len(batches),
        size=(max(11.0, 4.9 * len(batches) + 1.0), 4.9),
        share="xy",
    )
    best = minimum(x, y)
    box = limits([*trajectories.values(), np.array([best])])
    for axes, batch in zip(panels, batches, strict=True):
        filled = contours(axes, x, y, box)
        for place, replicas in enumerate(numbers):
            if (batch, replicas) in trajectories:
                path = trajectories[batch, replicas]
                # One trajectory is thin; several lie on each other, the first one widest.
                _draw_path(axes, path, place if len(numbers) > 1 else -1, f"{replicas} replica{'s' * (replicas > 1)}")
        start = next(path[0] for (each, _), path in trajectories.items() if each == batch)
        mark(axes, start, best)
        axes.set(title=f"batch of {batch}", xlabel="slope m", ylabel="intercept n" if batch == batches[0] else "")
    bar = figure.colorbar(filled, ax=panels, label="mean squared error (logarithmic)", pad=0.01)
    bar.set_ticks(filled.levels[::5], labels=[f"{level:.2g}" for level in filled.levels[::5]])
    handles = max((axes.get_legend_handles_labels()[0] for axes in panels), key=len)
    style.legend(figure, handles)
    return figure


def limits(paths: Sequence[np.ndarray]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the ranges of slope and intercept that contain all points, with a margin."""
    every = np.concatenate(paths)
    low, high = every.min(axis=0), every.max(axis=0)
    edge = _MARGIN * (high - low) + 0.05
    return tuple((float(a), float(b)) for a, b in zip(low - edge, high + edge, strict=True))


def contours(axes: Any, x: np.ndarray, y: np.ndarray, box: tuple[tuple[float, float], tuple[float, float]]) -> Any:
    """Fills the axes with the loss surface, with logarithmic levels; returns what a colour bar needs."""
    from matplotlib import colors

    grid = [np.linspace(*each, 160) for each in box]
    heights = errors(x, y, *grid)
    levels = np.geomspace(max(heights.min(), 1e-4 * heights.max()), heights.max(), 21)
    filled = axes.contourf(
        *grid, heights, levels=levels, norm=colors.LogNorm(), cmap=style.SURFACE, alpha=0.45, extend="min"
    )
    axes.grid(visible=False)
    axes.set(xlim=box[0], ylim=box[1])
    return filled


def mark(axes: Any, start: Sequence[float], best: Sequence[float]) -> None:
    """Marks the start and the minimum."""
    edge = {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 1.2, "zorder": 5}
    axes.plot(*start, marker="o", markersize=11, markerfacecolor="white", label="start", **edge)
    axes.plot(*best, marker="*", markersize=19, markerfacecolor="#F0E442", label="minimum", **edge)


def _draw_path(axes: Any, path: np.ndarray, place: int, label: str) -> None:
    width = _WIDTHS[min(place, len(_WIDTHS) - 1)]
    look = {
        "color": (style.COLORS[5], style.COLORS[1], style.COLORS[6])[place % 3],
        "linewidth": width,
        "solid_capstyle": "round",
    }
    marker = {"marker": ".", "markersize": 5, "markerfacecolor": "black", "markeredgewidth": 0}
    axes.plot(*path.T, **look, **marker, label=label)
