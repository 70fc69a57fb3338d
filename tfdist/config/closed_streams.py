"""Standard streams that are closed: by the reader of a pipe, as in `tfdist --help | head`, or from the start, `>&-`.

Imports no TensorFlow.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


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


def open_closed() -> None:
    """Opens the standard streams that were closed when the process started: what is written there is lost.

    Python has None in their place. Otherwise the next file that is opened has the number of such a stream, and the
    lines that TensorFlow and child processes write to it go to that file.
    """
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != number:
                    os.dup2(opened, number)
                    os.close(opened)
                os.set_inheritable(number, True)  # By child processes.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
