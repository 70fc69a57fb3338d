"""After an error: finds a value that is not finite, or a label, in the data, and names its place."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfdist.data import autograph, order, read_ahead, stream
from tfdist.data.stream import ReplicaShard, Source

# Time limit of a search: there may be many steps since the last checkpoint.
SECONDS = 60.0
# Examples that are read at once in the search for a label.
_CHUNK = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The examples of one replica in one step."""

    # Counted from 1.
    step: int
    # Column -> values [rows, ...].
    columns: Mapping[str, np.ndarray]
    # (column, (row, *index)) -> the place for a message, such as "x[57, 4]".
    place: Callable[[str, tuple[int, ...]], str]


def first_nonfinite(elements: Iterable[Rows]) -> tuple[int, str] | None:
    """Returns the step and a sentence about the first value that is not finite; None if all are.

    Only columns of floats are searched, for `SECONDS` at most.
    """
    end = time.monotonic() + SECONDS
    for rows in itertools.takewhile(lambda rows: time.monotonic() < end, elements):
        for name, values in rows.columns.items():
            # NumPy has no bfloat16: its kind is "V".
            values = values.astype(np.float32) if values.dtype.kind == "V" else values
            if values.dtype.kind != "f" or np.isfinite(values).all():
                continue
            bad = np.argwhere(~np.isfinite(values))
            at = tuple(int(index) for index in bad[0])
            others = len({int(row) for row in bad[:, 0]}) - 1
            more = f", and {others} more of its examples have such values" if others else ""
            return rows.step, f"in step {rows.step}, {rows.place(name, at)} is {values[at]}{more}"
    return None


def example_with_label(sources: Mapping[str, Source | None], column: str, label: int) -> str:
    """Returns the first example with this label, such as "Example 17 of the split 'train'"; "": none was found.

    With divided shards (`config.data.shards`), it is the first of this worker's part, and the text says so.

    Args:
        sources: split -> its source, or None.
        column: the column of the labels, as the source reads it.
    """
    for split, source in sources.items():
        if source is None:
            continue
        part = order.examples_of(source)
        read = tf.autograph.experimental.do_not_convert(autograph.convert_read(source))
        for start, batch in tf.data.Dataset.range(len(source)).batch(_CHUNK).map(read).enumerate():
            rows = np.argwhere(batch[column].numpy() == label) if column in batch else ()
            if len(rows):
                searched = f", the first in the part of worker {part.index}," if part.count > 1 else ""
                return f"Example {part.ids(int(start) * _CHUNK + int(rows[0][0]))} of the split {split!r}{searched}"
    return ""


def rows_of_steps(
    dataset: Callable[[int, int], tf.data.Dataset],
    shard: ReplicaShard,
    source: Source,
    split: str,
    first_number: int,
    last_number: int,
    *,
    seed: int,
    global_batch: int,
    shuffle: bool,
) -> Iterator[Rows]:
    """Reads this worker's examples of the steps `first_number` to `last_number`, counted from 1, of a config's run.

    Args:
        dataset: what `stream.training` returned.
    """
    locate = stream.locate_rows(source, shard, global_batch=global_batch, seed=seed, shuffle=shuffle)
    first = (first_number - 1) * shard.local_replicas
    elements = dataset(first_number - 1, last_number).take((last_number - first_number + 1) * shard.local_replicas)
    for number, batch in enumerate(read_ahead.without_autotuning(elements), first):
        step, rows, _ = locate(tf.constant(number, tf.int64))
        columns = {name: value.numpy() for name, value in batch.items()}
        place = functools.partial(_place, split, order.examples_of(source).ids(rows.numpy()))
        yield Rows(step=1 + int(step), columns=columns, place=place)


def _place(split: str, ids: np.ndarray, column: str, at: tuple[int, ...]) -> str:
    """Returns the place of a value, for a message; see `Rows.place`. `ids`: the examples, by their numbers."""
    return f"{column}{[*at[1:]] or ''} of the prepared example {ids[at[0]]} of the split {split!r}"
