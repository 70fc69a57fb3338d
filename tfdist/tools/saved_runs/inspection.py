"""Shows what a run gets wrong: `python -m tfdist inspect RUN [DIR]`.

The examples are those of the evaluation split of the run, or those of DIR, a folder of class folders. It prints a
table of the classes; the folder inspect/ of the workdir gets it as classes.csv, the confusion matrix and the most
wrong images as pictures, and all wrong examples as wrong.csv.

    python -m tfdist inspect runs/digits
    python -m tfdist inspect runs/cats photos/ --checkpoint=best
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfdist.cluster import process_exit
from tfdist.config.command_line import tool_words
from tfdist.tools import tables
from tfdist.tools.pictures import style
from tfdist.tools.saved_runs import meaning, predict
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "RUN [DIR] [flags]"
# Classes whose numbers are written into the matrix.
_WRITTEN = 25
_COLUMNS = 6


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_integer("most", 24, "The number of images in the picture of the most wrong ones.", lower_bound=1)
    flags.DEFINE_string("out", None, "The folder of the results. Default: inspect in the workdir.")
    predict.define_model_flags()


parse = tool_words.need_words(1, "tfdist inspect: give the workdir of a run and what follows: tfdist inspect RUN [DIR]")


def outputs_of_split(saved: SavedRun, cluster: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Returns the model's outputs and the labels of the evaluation split, and its source. Collective.

    Raises ValueError if the run has no evaluation split, or only an input pipeline of its own.
    """
    from tfdist.data import inputs
    from tfdist.tools.saved_runs import outputs, weights

    if saved.config is None:
        raise ValueError(
            f"{saved.workdir} is the run of a script, which has its data itself: give a folder of class folders, as "
            "tfdist inspect RUN DIR."
        )
    split = saved.config.data.evaluation_split
    if split is None:
        raise ValueError("The run has no evaluation split (config.data.evaluation_split=None): give a folder.")
    source = inputs.open_source(saved.config, split)
    if not hasattr(source, "read"):
        raise ValueError("The source of the run is a tf.data.Dataset without access to an example: give a folder.")
    model = weights.load(saved, cluster, flags.FLAGS.checkpoint)
    prepare = weights.preparation(saved)
    call, size = outputs.caller(saved, model), predict.batch_size(saved)
    found, columns = outputs.compute(cluster, call, source, prepare, batch=size, keep=(saved.labels,))
    labels = columns.get(saved.labels)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"The examples have no class numbers [n] with the key {saved.labels!r}: nothing to compare.")
    return found, labels.astype(np.int64), source


def inspect(workdir: str, words: Sequence[str]) -> int:
    """Computes, prints and writes; returns the exit code."""
    saved = saved_lib.open_run(workdir)
    out = Path(flags.FLAGS.out or saved.workdir / "inspect").expanduser()
    tables.make_folder(out)  # Before the computation, which may take long.
    cluster = predict.connect(saved)
    if words:
        found, source = predict.outputs_of_files(saved, cluster, words)
        if source.labels is None:
            raise ValueError(
                f"No folder of {words[0]} has the name of a class: {', '.join(saved.classes) or 'unknown'}."
            )
        labels = source.labels
    else:
        found, labels, source = outputs_of_split(saved, cluster)
    if found.ndim != 2 or labels.max() >= max(2, found.shape[1]):
        raise ValueError(f"The model is no classifier of these labels: its outputs are {list(found.shape)}.")
    if cluster.is_chief:
        known = np.flatnonzero(labels >= 0)
        probability = meaning.probabilities(found, logits=predict.gives_logits(saved))
        classes = meaning.class_names(saved.classes, probability.shape[1])
        write(out, saved, source, known, probability, labels, classes)
    cluster.leave()
    return 0


def write(
    out: Path,
    saved: SavedRun,
    source: Any,
    known: np.ndarray,
    probability: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
) -> None:
    """Prints the table of the classes, and writes the files to the folder `out`.

    Args:
        source: of the examples, which reads images.
        known: numbers of the examples whose label is known.
        probability: of each class, float64 [examples, classes].
        labels: int64 [examples].
    """
    probability, labels = probability[known], labels[known]
    matrix = meaning.confusion(labels, probability.argmax(1), len(classes))
    header, rows = meaning.per_class(matrix, classes)
    print(tables.text(header, rows))
    right = int(np.trace(matrix))
    print(f"accuracy {right / len(labels):.4f}: {right:,} of {len(labels):,} examples")
    tables.write_csv(out / "classes.csv", header, rows)
    all_wrong = meaning.most_wrong(probability, labels, len(labels))
    names = getattr(source, "names", None)
    listed = []
    for row in all_wrong:
        name = names[known[row]] if names else int(known[row])
        share, label, chosen = probability[row], labels[row], probability[row].argmax()
        listed.append([name, classes[label], classes[chosen], float(share[chosen]), float(share[label])])
    tables.write_csv(out / "wrong.csv", ("example", "label", "class", "probability", "p(label)"), listed)
    print(f"{out / 'classes.csv'}, wrong.csv")
    title = f"{saved.workdir.name}: {right / len(labels):.2%} of {len(labels):,} examples are right"
    print(style.save(out / "confusion", lambda: draw_confusion(matrix, classes, title)))
    images = read_images(source, known[all_wrong[: flags.FLAGS.most]])
    if images is None or not len(images):
        print("no picture of wrong examples: " + ("all are right" if not len(all_wrong) else "they are no images"))
        return
    captions = [(row[1], row[2], row[3]) for row in listed[: len(images)]]
    title = f"{saved.workdir.name}: the most wrong of {len(all_wrong):,} wrong examples"
    print(style.save(out / "wrong", lambda: draw_wrong(images, captions, title)))


def read_images(source: Any, numbers: np.ndarray) -> np.ndarray | None:
    """Returns the images of these examples, [n, h, w, c] in 0 to 1; None: the examples are no images."""
    import tensorflow as tf

    if not len(numbers):
        return np.zeros((0, 1, 1, 1))
    batch = next(iter(tf.data.Dataset.from_tensors(np.asarray(numbers, np.int64)).map(source.read)))
    image = batch.get("image")
    if image is None or image.shape.rank != 4 or image.shape[-1] not in (1, 3):
        return None
    values = image.numpy().astype(np.float64)
    if image.dtype == tf.uint8 and values.max() > 16:
        return values / 255
    low, high = values.min(), values.max()
    return (values - low) / max(high - low, 1e-12)


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


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(functools.partial(inspect, argv[1], argv[2:]), saves=False)
