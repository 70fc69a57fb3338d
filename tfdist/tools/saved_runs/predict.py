"""Predicts with the model of a run, on all devices and workers: `python -m tfdist predict RUN FILES`.

RUN is the workdir of a run. FILES are images, or folders of images; one .npy or .npz file; one table, .csv, .tsv or
.parquet, with the columns of the training; or one .txt file for a run on text: the character after each of its lines
is predicted. A model with several inputs takes a .npz file with an array for each, by their names. Examples are
prepared as in an evaluation of the run.

    python -m tfdist predict runs/cats photos/ --out=cats.csv
    srun python -m tfdist predict runs/cats photos/ --out=cats.csv --checkpoint=best

The table has the class and its probability for each file; --out writes it with the probabilities of all classes. Images
in a folder with the name of a class count as examples of this class, and rows of a table with the label's column as
examples of that label: the accuracy is printed, too.
"""

import collections
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config.command_line import tool_words
from tfdist.tools import tables
from tfdist.tools.saved_runs import meaning
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "RUN FILES... [flags]"
# Rows that are printed; the file has all.
_SHOWN = 20


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_string("out", None, "The CSV file with all predictions.")
    define_model_flags()


def define_model_flags() -> None:
    """Defines the flags of the commands that call the model of a run."""
    flags.DEFINE_string("checkpoint", "newest", 'The weights: "newest", "best" or a step.')
    text = "Examples of a step over all replicas. Default: as in the run's evaluation."
    flags.DEFINE_integer("batch_size", None, text, lower_bound=1)
    flags.DEFINE_integer("gpus", None, "GPUs of each worker; 0: the CPU. Default: all.", lower_bound=0)


parse = tool_words.need_words(
    2, "tfdist predict: give the workdir of a run and what follows: tfdist predict RUN FILES..."
)


def connect(saved: SavedRun) -> Any:
    """Connects the workers of this command, with the options of the run; returns the `Cluster`."""
    from tfdist.cluster import strategy

    options = config_lib.ClusterOptions() if saved.config is None else saved.config.cluster
    if flags.FLAGS.gpus is not None:
        options.gpus = flags.FLAGS.gpus
    must_match = {"the workdir": str(saved.workdir), "--checkpoint": flags.FLAGS.checkpoint}
    return strategy.connect(strategy.plan(options), must_match=must_match)


def batch_size(saved: SavedRun) -> int:
    """Returns the examples of a step over all replicas."""
    data = config_lib.Data() if saved.config is None else saved.config.data
    return flags.FLAGS.batch_size or data.evaluation_batch_size or data.batch_size


def outputs_of_files(saved: SavedRun, cluster: Any, words: Sequence[str]) -> tuple[np.ndarray, Any]:
    """Returns the model's outputs [n, ...] for files, and their source. Collective.

    Raises ValueError if a file cannot be read, or does not fit the model.
    """
    import tensorflow as tf

    from tfdist.tools.saved_runs import examples, outputs, weights

    model = weights.load(saved, cluster, flags.FLAGS.checkpoint)
    try:
        source = examples.open_examples(saved, model, words)
    except UnicodeDecodeError as error:
        raise ValueError(f"{words[0]} is no text in UTF-8: {error}") from None
    if not len(source):
        raise ValueError(f"{words[0]} has no examples.")
    prepare = weights.preparation(saved)
    name = "images" if isinstance(source, examples.ImageFiles) else "examples"
    size = min(batch_size(saved), len(source))
    try:
        found, _ = outputs.compute(cluster, outputs.caller(saved, model), source, prepare, batch=size, name=name)
    except tf.errors.OpError:
        damage = source.find_damage()
        if damage:
            raise ValueError(damage) from None
        raise
    after_lines = found.ndim == 3 and examples.find(words)[0] == "text"
    return found[:, -1] if after_lines else found, source


def is_classifier(saved: SavedRun, outputs: np.ndarray) -> bool:
    """Returns whether outputs [n, ...] are those of classes: the run names classes, or counts them."""
    config = saved.config
    counts = config is not None and (
        "num_classes" in config.model or str(config.objective["target"]).endswith(":classification")
    )
    return outputs.ndim == 2 and (bool(saved.classes) or counts)


def gives_logits(saved: SavedRun) -> bool:
    """Returns whether the loss of the run takes the model's outputs for logits."""
    return bool(saved.config and (saved.config.objective.get("arguments") or {}).get("from_logits"))


def table(
    names: Sequence[str], outputs: np.ndarray, classes: Sequence[str] | None, first: str, *, logits: bool = False
) -> tuple[list[str], list[list[Any]]]:
    """Returns the header and the rows of a table of predictions; `first`: the heading of the names of the examples.

    `classes` are the names of a classifier's outputs, known to be `logits` or not; None: the outputs are numbers.
    """
    if classes is None:
        flat = outputs.reshape(len(outputs), -1)
        header = [first, *(f"output_{number}" for number in range(flat.shape[1]))]
        return header, [[name, *row] for name, row in zip(names, flat.tolist(), strict=True)]
    probability = meaning.probabilities(outputs, logits=logits)
    chosen = probability.argmax(1)
    header = [first, "class", "probability", *(f"p({name})" for name in classes)]
    found = zip(names, chosen, probability, strict=True)
    rows = [[name, classes[best], float(row[best]), *row.tolist()] for name, best, row in found]
    return header, rows


def predict(workdir: str, words: Sequence[str]) -> int:
    """Predicts, prints and writes; returns the exit code."""
    saved = saved_lib.open_run(workdir)
    if flags.FLAGS.out:  # Before the prediction, which may take long.
        tables.make_place(Path(flags.FLAGS.out).expanduser())
    cluster = connect(saved)
    outputs, source = outputs_of_files(saved, cluster, words)
    classes = meaning.class_names(saved.classes, max(2, outputs.shape[1])) if is_classifier(saved, outputs) else None
    first = {"0": "row"}.get(source.names[0], "line" if words[0].endswith(".txt") else "file")
    header, rows = table(source.names, outputs, classes, first, logits=gives_logits(saved))
    if classes is None and saved.label_column and len(header) == 2:
        header = [first, saved.label_column]
    if cluster.is_chief:
        show(header, rows, source.labels, classes)
        if flags.FLAGS.out:
            tables.write_csv(Path(flags.FLAGS.out).expanduser(), header, rows)
            print(flags.FLAGS.out)
    cluster.leave()
    return 0


def show(
    header: Sequence[str], rows: Sequence[Sequence[Any]], labels: np.ndarray | None, classes: Sequence[str] | None
) -> None:
    """Prints the first rows, the number of examples of each class, and the accuracy if the labels are known."""
    width = 3 if classes is not None else 9
    print(tables.text(header[:width], [row[:width] for row in rows[:_SHOWN]]))
    if len(rows) > _SHOWN:
        print(f"... {len(rows) - _SHOWN:,} more; --out=FILE.csv writes all.")
    if classes is None:
        return
    counts = collections.Counter(row[1] for row in rows)
    print(f"{len(rows):,} examples: {', '.join(f'{count:,} {name}' for name, count in counts.most_common(12))}")
    if labels is not None:
        known = labels >= 0
        chosen = np.array([classes.index(row[1]) for row in rows])
        right = int((chosen == labels)[known].sum())
        print(f"accuracy {right / int(known.sum()):.4f}: {right:,} of {int(known.sum()):,}, by their labels")


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    process_exit.run_and_exit(functools.partial(predict, argv[1], argv[2:]), saves=False)
