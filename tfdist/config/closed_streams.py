"""Standard streams that are closed: by the reader of a pipe, as in `tfdist --help | head`, or from the start, `>&-`.

Imports no TensorFlow.
"""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def exit_quietly() -> Iterator[None]:
    """In the block, ends the process with exit code 0 and without a message if standard output is closed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output at the end, which would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def reopen() -> None:
    """Opens the standard streams that were closed when the process started: what is written there is lost.

    Otherwise the next files that are opened get the descriptors of these streams, and the output of TensorFlow and
    child processes goes to these files.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The lowest free number is this one.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
