"""Errors of TensorFlow that data of a script causes, in the words of the script."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

_LABEL = re.compile(r"Received a label value of (\S+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def explained(steps: int) -> Iterator[None]:
    """In the block, raises a ValueError for labels, ends and texts in the data that the model cannot be trained with.

    Args:
        steps: the steps of an epoch.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.UnimplementedError) as error:
        text = _explanation(error, steps)
        if text is None:
            raise
        raise ValueError(text) from None


def _explanation(error: tf.errors.OpError, steps: int) -> str | None:
    label = _LABEL.search(error.message)
    if label:
        value, outputs = label[1], int(label[2])
        return (
            f"The targets have the label {value}, but the model has {outputs} outputs, for the labels 0 to "
            f"{outputs - 1}: number the classes from 0 on, or give the last layer more units."
        )
    if isinstance(error, tf.errors.OutOfRangeError):
        return (
            f"The data ended before an epoch of {steps} steps was complete, or before the last epoch. A generator must "
            "give steps_per_epoch batches for each epoch: let it start again at its end, or lower steps_per_epoch."
        )
    if "Cast string to" in error.message:
        return (
            "The data holds text, which the model computes with: convert numbers with array.astype('float32'), or "
            "let a layer such as keras.layers.StringLookup be the first to read it."
        )
    return None
