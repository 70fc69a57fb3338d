"""Explains errors of TensorFlow that the data of a script causes."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

# Checks of tfdist in a step and in the data, each with the numbers that it compares.
_CHECK = re.compile(r"\[((?:A batch holds|A step needs|A tensor of the whole batch|The layer)[^\]]*)\] \[([^\]]*)\]")


@contextlib.contextmanager
def explain(steps: int) -> Iterator[None]:
    """Turns TensorFlow's error into a ValueError if the data ends too early or has unsuitable numbers of rows."""
    try:
        yield
    except (
        tf.errors.OutOfRangeError,
        tf.errors.InvalidArgumentError,
        tf.errors.FailedPreconditionError,  # The data ended exactly where an epoch did.
    ) as error:
        if found := _CHECK.search(error.message):
            raise ValueError(f"{found[1]} {found[2]}") from None
        ends = ("OutOfRangeError: End of sequence", "infinite number of elements")
        if not isinstance(error, tf.errors.OutOfRangeError) and not any(text in error.message for text in ends):
            raise
        raise ValueError(
            f"The data ended before an epoch of {steps} steps, an evaluation or a prediction was complete, or before "
            "the last epoch. A generator must yield as many batches for each of them: let it start again at its end, "
            "or lower steps_per_epoch, validation_steps or steps."
        ) from None
