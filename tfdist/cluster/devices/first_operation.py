"""Explains TensorFlow's errors if devices are configured after the first operation."""

import contextlib
from collections.abc import Iterator

# Parts of TensorFlow's messages.
_TOO_LATE = ("must be configured at program startup", "cannot be modified after being initialized")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Replaces the error of a block that configures devices or collectives too late by one that names the call to move.

    Raises:
        RuntimeError: TensorFlow has run an operation, or listed logical devices, before.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _TOO_LATE):
            raise
        raise RuntimeError(
            "tfdist.connect() must come before all other operations of TensorFlow in this process, such as tf.constant "
            "or a model: move it to the top of the script, behind the imports. In a notebook, restart the "
            f"kernel. TensorFlow: {error}"
        ) from error
