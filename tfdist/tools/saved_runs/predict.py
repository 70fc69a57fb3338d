"""Predicts files with the model of a run: `python -m tfdist predict RUN FILES`.

RUN is the workdir of a run. FILES are images, folders of images, one .npz file, or one table (.csv, .tsv, .parquet).
They are prepared as in an evaluation of the run.

    python -m tfdist predict runs/cats photos/ --out=cats.csv
    srun python -m tfdist predict runs/cats photos/ --out=cats.csv --checkpoint=best

The table has the class and its probability for each file; --out writes it with the probabilities of all classes. If the
labels are known, the accuracy or the errors of predicted numbers are printed, too: an image in a folder with the name
of a class has this label, and a table may have the label's column.
"""

import argparse
import collections
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.cluster import process_exit
from tfdist.config import tool_flags
from tfdist.tools import tables
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "RUN FILES... [flags]"
# Maximum number of rows that are printed; the file has all.
_SHOWN = 20
# Sums of probabilities may differ from 1 by the rounding of float16.
_TOLERANCE = 5e-3


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("run", metavar="RUN", help="The workdir of a run.")
    parser.add_argument("files", metavar="FILES", nargs="+", help="Files or folders.")
    parser.add_argument("--out", metavar="FILE", type=tool_flags.path, help="The CSV file with all predictions.")
    add_checkpoint(parser)


def add_checkpoint(parser: tool_flags.Parser) -> None:
    """Adds the flag of the commands that load the model of a run."""
    meaning = 'The weights: "newest", "best" or a step. Default: newest.'
    parser.add_argument("--checkpoint", metavar="WHICH", default="newest", help=meaning)


def outputs_of_files(saved: SavedRun, cluster: Any, words: Sequence[str], which: str) -> tuple[np.ndarray, Any]:
    """Returns the model's outputs [n, ...] for files, and their source. Collective.

    Raises ValueError if a file cannot be read, or does not fit the model.
    """
    import tensorflow as tf

    from tfdist.tools.saved_runs import examples
    from tfdist.tools.saved_runs import model as model_lib

    model = model_lib.load(saved, cluster, which)
    source = examples.open_examples(saved, words)
    if not len(source):
        raise ValueError(f"{words[0]} has no examples.")
    try:
        found, _ = model_lib.outputs(saved, cluster, model, source)
    except tf.errors.OpError:
        if damaged := [*getattr(source, "damaged", tuple)()]:
            raise ValueError("\n".join(damaged)) from None
        raise
    return found, source


def class_names(saved: SavedRun, count: int) -> list[str]:
    """Returns the names of `count` classes: those of the run, or else their numbers."""
    return list(saved.classes) if len(saved.classes) == count else [str(number) for number in range(count)]


def probabilities(saved: SavedRun, outputs: np.ndarray) -> np.ndarray:
    """Returns the probability of each class, float64 [n, classes], from the outputs of a classifier.

    `outputs` are [n, classes], or [n, 1] for two classes: then they belong to the second one. Those within 0 and 1 are
    probabilities, unless the loss of the run takes them for logits.
    """
    outputs = outputs.astype(np.float64)
    logits = (saved.config.objective.get("arguments") or {}).get("from_logits")
    within = bool((outputs >= 0).all() and (outputs <= 1).all()) and not logits
    if outputs.shape[1] == 1:
        second = outputs if within else 1 / (1 + np.exp(-outputs))
        return np.concatenate([1 - second, second], axis=1)
    if within and np.allclose(outputs.sum(1), 1, atol=_TOLERANCE):
        return outputs
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def _is_classifier(saved: SavedRun, outputs: np.ndarray) -> bool:
    """Returns whether outputs [n, ...] are those of classes: the run names classes, or counts them."""
    config = saved.config
    counts = "num_classes" in config.model or str(config.objective["target"]).endswith(":classification")
    return outputs.ndim == 2 and (bool(saved.classes) or counts)


def table(saved: SavedRun, source: Any, outputs: np.ndarray) -> tuple[list[str], list[list[Any]]]:
    """Returns the header and the rows of a table of predictions."""
    if _is_classifier(saved, outputs):
        probability = probabilities(saved, outputs)
        classes, chosen = class_names(saved, probability.shape[1]), probability.argmax(1)
        header = ["class", "probability", *(f"p({name})" for name in classes)]
        found = [
            [classes[best], float(row[best]), *row.tolist()] for row, best in zip(probability, chosen, strict=True)
        ]
    else:
        found = outputs.reshape(len(outputs), -1).tolist()
        one = saved.label_column if len(found[0]) == 1 else ""
        header = [one or f"output_{number}" for number in range(len(found[0]))]
    return [source.kind, *header], [[name, *row] for name, row in zip(source.names, found, strict=True)]


def predict(args: argparse.Namespace) -> int:
    """Predicts, prints and writes; returns the exit code."""
    saved = saved_lib.open_run(args.run)
    if args.out:  # Before the prediction, which may take long.
        if args.out.exists() and not args.out.is_file():  # A folder or a device, such as /dev/stdout.
            raise ValueError(f"--out={args.out} is not a file: choose another one.")
        tables.make_folder(args.out.resolve().parent)
    from tfdist.tools.saved_runs import model as model_lib

    cluster = model_lib.connect(saved, args.checkpoint)
    outputs, source = outputs_of_files(saved, cluster, args.files, args.checkpoint)
    if cluster.is_chief:
        header, rows = table(saved, source, outputs)
        _show(header, rows, saved.classes, source.labels, "" if args.out else "; --out=FILE.csv has all")
        targets = getattr(source, "targets", None)
        if targets is not None and not np.isnan(targets).all():
            print(errors(outputs.reshape(len(outputs), -1)[:, 0], targets, saved.label_column))
        if args.out:
            tables.write_csv(args.out, header, rows)
            print(args.out)
    cluster.leave()
    return 0


def _show(
    header: Sequence[str], rows: Sequence[Sequence[Any]], classes: Sequence[str], labels: np.ndarray | None, hint: str
) -> None:
    """Prints the first rows, the number of examples of each class, and the accuracy if the labels are known.

    `hint`: what follows the number of rows that are not printed.
    """
    of_classes = header[1] == "class"
    width = 3 if of_classes else 9
    print(tables.text(header[:width], [row[:width] for row in rows[:_SHOWN]]))
    if len(rows) > _SHOWN:
        print(f"... {len(rows) - _SHOWN:,} more{hint}.")
    if of_classes:
        counts = collections.Counter(row[1] for row in rows)
        print(f"{len(rows):,} examples: {', '.join(f'{count:,} {name}' for name, count in counts.most_common(12))}")
    if labels is not None:  # Indices into `classes`; -1: no label.
        known = int((labels >= 0).sum())
        right = sum(number >= 0 and classes[number] == row[1] for number, row in zip(labels, rows, strict=True))
        print(f"accuracy {right / known:.4f}: {right:,} of {known:,}, by their labels")


def errors(predicted: np.ndarray, targets: np.ndarray, name: str) -> str:
    """Returns a line with the errors of predicted numbers; `targets` are NaN where they are not known."""
    known = ~np.isnan(targets)
    errors = predicted[known].astype(np.float64) - targets[known]
    mean, root = np.abs(errors).mean(), np.sqrt(np.square(errors).mean())
    rows = f"{known.sum():,} rows with {name!r}"
    return f"mean absolute error {mean:.4g}, root mean squared error {root:.4g}: {rows}"


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    process_exit.run_and_exit(functools.partial(predict, args), saves=False)
