"""After an error in an execution, finds and names the example that caused it."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import tensorflow as tf

from tfdist.cluster import interruption
from tfdist.cluster.control import heartbeat_monitor
from tfdist.data import inspection
from tfdist.training.run import Run

T = TypeVar("T")
_LABEL = re.compile(r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explain_errors(run: Run) -> Iterator[None]:
    """In the block, raises a ValueError that names the example if the data makes an execution fail."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        heartbeat_monitor.reserve_exit()  # Otherwise a lost worker could end this process during the search.
        raise explain(run, error) or error from None


def explain(run: Run, error: tf.errors.OpError) -> ValueError | None:
    """Returns the error to raise; None if no label and no example of the pipeline is found to be the cause."""
    label = _LABEL.search(str(error))
    if label:
        value, outputs = label[1], int(label[2])
        place = _search(run, functools.partial(run.feed.find_label, int(value)))
        has = f"{place} has" if place else "The targets have"
        return ValueError(
            f"{has} {_too_large(value, outputs)}: number the classes from 0 on, or give the last layer more units."
        )
    if "IteratorGetNext" in str(error):
        return _search(run, functools.partial(_first_damage, run))
    return None


def label_out_of_range(run: Run) -> str:
    """Returns a sentence about a label equal to the number of outputs, which is one too large; "": there is none.

    On GPUs, and where XLA compiles the loss, such a label makes the loss NaN. Collective; each worker searches the
    examples that it can read.
    """
    shape = getattr(run.context.model, "output_shape", None)
    integers = [one.shape for one in tf.nest.flatten(run.feed.spec) if one.dtype.is_integer]
    one_per_example = any(one.rank and one[1:].num_elements() == 1 for one in integers)
    if not one_per_example or not isinstance(shape, tuple) or len(shape) != 2 or (shape[-1] or 0) < 2:
        return ""
    place = _search(run, functools.partial(run.feed.find_label, shape[-1]))
    found = next(filter(None, run.cluster.all_gather_text(place or "")), "")
    return found and f"{found} has {_too_large(shape[-1], shape[-1])}"


def _too_large(label: int | str, outputs: int) -> str:
    return f"the label {label}, but the model has {outputs} outputs, for the labels 0 to {outputs - 1}"


def _first_damage(run: Run) -> ValueError | None:
    try:
        run.feed.verify()
    except ValueError as damage:
        return damage
    return None


def _search(run: Run, find: Callable[[], T]) -> T | None:
    """Returns the result of `find`; None if it takes too long."""
    with run.cluster.monitor.pause_timers():
        return interruption.within(inspection.SECONDS, find)
