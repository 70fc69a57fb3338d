"""Shows what a run gets wrong: `python -m tfdist inspect RUN`.

The examples are those of the evaluation split of the run. It prints a table of the classes; the folder inspect/ of the
workdir gets wrong.csv, with the files or rows of all wrong examples, and pictures of the confusion matrix and the 20
most wrong images.

    python -m tfdist inspect runs/digits
    python -m tfdist inspect runs/cats --checkpoint=best
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.tools import tables
from tfdist.tools.pictures import style
from tfdist.tools.saved_runs import predict
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "RUN [flags]"
# Images in the picture, and in a row of it; with more classes than this, the matrix has colours only.
_WORST, _COLUMNS, _MAX_WITH_NUMBERS = 20, 5, 25


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("run", metavar="RUN", help="The workdir of a run.")
    predict.add_checkpoint(parser)


def outputs_of_split(saved: SavedRun, cluster: Any, which: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """Returns the model's outputs and the labels of the evaluation split, and its source. Collective.

    Raises ValueError if the run has no evaluation split, or its examples have no class numbers.
    """
    from tfdist.data import inputs
    from tfdist.tools.saved_runs import model as model_lib

    split = saved.config.data.evaluation_split
    if split is None:
        raise ValueError("The run has no evaluation split (config.data.evaluation_split=None): use tfdist predict.")
    source = inputs.open_source(saved.config, split)
    model = model_lib.load(saved, cluster, which)
    found, columns = model_lib.outputs(saved, cluster, model, source, keep=(saved.labels,))
    labels = columns.get(saved.labels)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"The examples have no class numbers [n] with the key {saved.labels!r}: tfdist inspect compares classes."
        )
    return found, labels.astype(np.int64), source


def inspect(args: argparse.Namespace) -> int:
    """Computes, prints and writes; returns the exit code."""
    saved = saved_lib.open_run(args.run)
    out = saved.workdir / "inspect"
    tables.make_folder(out)  # Before the computation, which may take long.
    from tfdist.tools.saved_runs import model as model_lib

    cluster = model_lib.connect(saved, args.checkpoint)
    found, labels, source = outputs_of_split(saved, cluster, args.checkpoint)
    if found.ndim != 2 or labels.max() >= max(2, found.shape[1]):
        raise ValueError(f"The model does not classify these labels: its outputs have the shape {list(found.shape)}.")
    if cluster.is_chief:
        write(out, saved, source, predict.probabilities(saved, found), labels)
    cluster.leave()
    return 0


def write(out: Path, saved: SavedRun, source: Any, probability: np.ndarray, labels: np.ndarray) -> None:
    """Prints the table of the classes, and writes the files to the folder `out`.

    Args:
        source: of the examples, which reads images; its `names`, if it has them, are files or rows.
        probability: of each class, float64 [n, classes].
        labels: int64 [n].
    """
    classes, chosen = predict.class_names(saved, probability.shape[1]), probability.argmax(1)
    matrix = np.bincount(labels * len(classes) + chosen, minlength=len(classes) ** 2).reshape(len(classes), -1)
    print(tables.text(*per_class(matrix, classes)))
    right = int(np.trace(matrix))
    print(f"accuracy {right / len(labels):.4f}: {right:,} of {len(labels):,} examples")
    wrong = np.flatnonzero(chosen != labels)
    wrong = wrong[np.argsort(probability[wrong, labels[wrong]], kind="stable")]  # The least probable label first.
    names = getattr(source, "names", None)
    rows = [
        [
            names[row] if names is not None else int(row),
            classes[labels[row]],
            classes[chosen[row]],
            float(probability[row, chosen[row]]),
            float(probability[row, labels[row]]),
        ]
        for row in wrong
    ]
    header = (getattr(source, "kind", "example"), "label", "class", "probability", "p(label)")
    tables.write_csv(out / "wrong.csv", header, rows)
    if rows:
        print(f"the worst of {len(rows)} wrong examples:\n{tables.text(header, rows[:_WORST])}")
    print(out / "wrong.csv")
    title = f"{saved.workdir.name}: {right / len(labels):.2%} of {len(labels):,} examples are right"
    print(style.save(out / "confusion", lambda: draw_confusion(matrix, classes, title)))
    images = _read_images(source, wrong[:_WORST])
    if images is not None:
        title = f"{saved.workdir.name}: the worst of {len(rows):,} wrong examples"
        print(style.save(out / "wrong", lambda: draw_wrong(images, rows, title)))


def per_class(matrix: np.ndarray, names: Sequence[str]) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Returns header and rows of a table with a line for each class; shares are None where nothing can be counted.

    Row i of `matrix` has the examples of class i by the class that the model chose.
    """
    header = ("class", "examples", "right", "recall", "precision", "most often taken for")
    rows = []
    for number, name in enumerate(names):
        total, right, chosen = int(matrix[number].sum()), int(matrix[number, number]), int(matrix[:, number].sum())
        wrong = np.where(np.arange(len(names)) == number, 0, matrix[number])
        other = int(wrong.argmax())
        taken = f"{names[other]} ({wrong[other]})" if wrong[other] else "-"
        rows.append([name, total, right, right / total if total else None, right / chosen if chosen else None, taken])
    return header, rows


def _read_images(source: Any, numbers: np.ndarray) -> np.ndarray | None:
    """Returns the images of these examples, [n, h, w, c] in 0 to 1; None: there are none, or they are no images."""
    import tensorflow as tf

    if not len(numbers):
        return None
    image = next(iter(tf.data.Dataset.from_tensors(np.asarray(numbers, np.int64)).map(source.read))).get("image")
    if image is None or image.shape.rank != 4 or image.shape[-1] not in (1, 3):
        return None
    values = image.numpy().astype(np.float64)
    return (values - values.min()) / max(values.max() - values.min(), 1e-12)


def draw_confusion(matrix: np.ndarray, classes: Sequence[str], title: str) -> Any:
    """Returns a figure of a matrix as in `per_class`; the colour is the share of the examples of a row."""
    count = len(classes)
    side = min(14.0, max(6.0, 0.55 * count + 2))
    caption = "Rows: the label of the examples. Columns: the class that the model chose. Colour: share of a row."
    figure, (axes,) = style.figure(title, caption, size=(side + 2, side))
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    shown = range(0, count, max(1, -(-count // 40)))
    axes.set_xticks(shown, [classes[each] for each in shown], rotation=90 if sum(map(len, classes)) > 40 else 0)
    axes.set_yticks(shown, [classes[each] for each in shown])
    axes.set(xlabel="class chosen by the model", ylabel="label")
    axes.grid(visible=False)
    for row, column in np.argwhere(matrix > 0) if count <= _MAX_WITH_NUMBERS else ():
        color = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{matrix[row, column]:,}", ha="center", va="center", fontsize=10, color=color)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the label's examples")
    return figure


def draw_wrong(images: np.ndarray, rows: Sequence[Sequence[Any]], title: str) -> Any:
    """Returns a figure of images, [n, h, w, 1 or 3] in 0 to 1, each with its row of wrong.csv."""
    lines = -(-len(images) // _COLUMNS)
    caption = "Above each image: its file or number, its label, the class that the model chose, and its probability."
    figure, panels = style.figure(title, caption, columns=_COLUMNS, rows=lines, size=(2.6 * _COLUMNS, 2.7 * lines))
    for axes in panels:
        axes.set_axis_off()
    for axes, image, (name, label, chosen, probability, _) in zip(panels, images, rows, strict=False):
        grey = image.shape[-1] == 1
        axes.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=1)
        taken = f"{_short(Path(str(name)).name)}\n{_short(label)} taken for {_short(chosen)}\n{probability:.0%}"
        axes.set_title(taken, fontsize=10, loc="center", pad=3)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"…{name[-15:]}"


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(inspect, args), saves=False)
