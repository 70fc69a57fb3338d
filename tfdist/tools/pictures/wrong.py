"""Pictures of what a classifier gets wrong: the confusion matrix, and the images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.tools.pictures import style

# Classes whose numbers are written into the matrix.
_WRITTEN = 25
_COLUMNS = 6


def draw_confusion(matrix: np.ndarray, classes: Sequence[str], title: str) -> Any:
    """Returns a figure of a matrix of `meaning.confusion`; the colour is the share of the examples of a row."""
    count = len(classes)
    side = min(14.0, max(6.0, 0.55 * count + 2))
    caption = "Rows: the label of the examples. Columns: the class that the model chose. Colour: share of a row."
    figure, (axes,) = style.figure(title, caption, size=(side + 2, side))
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    step = max(1, -(-count // 40))
    shown = range(0, count, step)
    axes.set_xticks(shown, [classes[each] for each in shown], rotation=90 if sum(map(len, classes)) > 40 else 0)
    axes.set_yticks(shown, [classes[each] for each in shown])
    axes.set_xlabel("class chosen by the model")
    axes.set_ylabel("label")
    axes.grid(visible=False)
    for row, column in np.argwhere(matrix > 0) if count <= _WRITTEN else ():
        color = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{matrix[row, column]:,}", ha="center", va="center", fontsize=10, color=color)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the label's examples")
    return figure


def draw_wrong(images: np.ndarray, captions: Sequence[tuple[str, str, float]], title: str) -> Any:
    """Returns a figure of images, [n, h, w, 1 or 3] in 0 to 1, each with (label, chosen class, probability)."""
    columns = min(_COLUMNS, max(3, len(images)))
    rows = -(-len(images) // columns)
    caption = "Above each image: its label, the class that the model chose, and its probability."
    figure, panels = style.figure(title, caption, columns=columns, rows=rows, size=(2.2 * columns, 2.5 * rows))
    for axes in panels:
        axes.set_axis_off()
    for axes, image, (label, chosen, probability) in zip(panels, images, captions, strict=False):
        grey = image.shape[-1] == 1
        axes.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=1)
        title = f"{_short(label)} taken for {_short(chosen)}\n{probability:.0%}"
        axes.set_title(title, fontsize=10, loc="center", pad=3)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
