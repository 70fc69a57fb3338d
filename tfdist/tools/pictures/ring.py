"""Picture of a ring all-reduce: the chunks of each replica after each step, with values and times of a run."""

from typing import Any

import numpy as np

from tfdist.tools.pictures import style
from tfdist.tools.studies import ring
from tfdist.tools.studies.ring import Record

# More replicas than this do not fit onto a page.
MOST = 8
# Panels side by side.
_COLUMNS = 4


def draw(record: Record, *, caption: str) -> Any:
    """Returns a figure: the chunks before the first step and after each, a panel each, and the time of the steps.

    A row of a panel is a replica, a column a chunk. The colour of a cell says how many replicas are in its sum, and a
    frame that it has just arrived. Up to four replicas, the reduce-scatter is above and the all-gather below.

    Args:
        record: of at most `MOST` replicas.
        caption: what was run where.
    """
    count = record.replicas
    columns = min(count, _COLUMNS)
    rows = -(-2 * count // columns)
    width, height = max(3.1, 0.6 * count), max(3.4, 0.45 * count + 1.0)
    size = (max(12.5, columns * width), rows * height)
    figure, panels = style.figure(
        f"A ring all-reduce over {count} replicas", caption, columns=columns, rows=rows, size=size
    )
    times = panels.pop(count if rows == 2 else 2 * count - 1)
    contributions = _contributions(count)
    for step, axes in enumerate(panels[: 2 * count - 1]):
        image = _draw_chunks(axes, record, step, contributions[step])
        if axes.get_subplotspec().is_first_col() or (rows == 2 and step == count):
            axes.set_ylabel("replica")
    for axes in panels[2 * count - 1 :]:
        axes.set_visible(False)
    _draw_times(times, record)
    bar = figure.colorbar(image, ax=[*panels, times], ticks=range(1, count + 1), pad=0.01, fraction=0.02)
    bar.set_label("replicas in the sum")
    return figure


def _contributions(count: int) -> np.ndarray:
    """Returns how many replicas are in the sum of each chunk, int64 [2 N - 1, replica, chunk]."""
    states = [np.ones((count, count), np.int64)]
    for step in range(2 * (count - 1)):
        before, after = states[-1], states[-1].copy()
        for replica in range(count):
            _, received = ring.chunks_of_step(replica, step, count)
            more = before[(replica - 1) % count, received]
            after[replica, received] = more + (before[replica, received] if step < count - 1 else 0)
        states.append(after)
    return np.array(states)


def _draw_chunks(axes: Any, record: Record, step: int, contributions: np.ndarray) -> Any:
    """Draws the chunks of all replicas after `step` steps; returns the image, for the colour bar."""
    from matplotlib.patches import Rectangle

    count = record.replicas
    image = axes.imshow(contributions, cmap=style.SURFACE, vmin=1, vmax=count, aspect="auto")
    font = 11 if count <= 4 else 8
    for replica in range(count):
        for chunk in range(count):
            color = "black" if contributions[replica, chunk] > (1 + count) / 2 else "white"
            text = f"{record.values[replica, step, chunk]:.2g}"
            axes.text(chunk, replica, text, ha="center", va="center", color=color, fontsize=font)
        if step:
            _, received = ring.chunks_of_step(replica, step - 1, count)
            look = {"fill": False, "edgecolor": style.COLORS[1], "linewidth": 3.0}
            axes.add_patch(Rectangle((received - 0.46, replica - 0.46), 0.92, 0.92, **look))
    for edge in np.arange(0.5, count - 1):
        axes.axhline(edge, color="white", linewidth=1.0)
        axes.axvline(edge, color="white", linewidth=1.0)
    axes.set_xticks(range(count), [f"{chunk}" for chunk in range(count)])
    axes.set_yticks(range(count))
    axes.set_xlabel("chunk")
    axes.grid(visible=False)
    if step == 0:
        axes.set_title("Own gradients")
        return image
    phase, number = divmod(step - 1, count - 1)
    axes.set_title(f"{ring.PHASES[phase].capitalize()} {number + 1}")
    return image


def _draw_times(axes: Any, record: Record) -> None:
    """Draws the time of each step: the median of the replicas as a bar, from the fastest to the slowest as a line."""
    times = 1e3 * record.seconds
    steps = np.arange(1, times.shape[1] + 1)
    middle = np.median(times, axis=0)
    half = record.replicas - 1
    for part, (name, color) in enumerate(zip(ring.PHASES, (style.COLORS[0], style.COLORS[4]), strict=True)):
        chosen = slice(part * half, (part + 1) * half)
        axes.bar(steps[chosen], middle[chosen], color=color, label=name)
    lower, upper = middle - times.min(axis=0), times.max(axis=0) - middle
    axes.errorbar(steps, middle, yerr=[lower, upper], fmt="none", ecolor="black", elinewidth=1.3)
    axes.set(title="Time of each step", xlabel="step", ylabel="milliseconds")
    axes.set_ylim(0, 1.45 * float(times.max()))
    axes.set_xticks(steps)
    axes.legend(loc="upper left", fontsize=10)
