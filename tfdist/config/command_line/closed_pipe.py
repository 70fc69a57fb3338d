"""Ends a command quietly if the reader of its output closes it, as in `tfdist --help | head`. No TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """In the block, ends the process with exit code 0 and without a message if standard output is closed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output at the end, which would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
