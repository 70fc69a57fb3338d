"""TensorFlow's own log: TF_CPP_MIN_LOG_LEVEL hides its lines, except a few that its import writes at every level."""

import functools
import sys
from collections.abc import MutableMapping

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# The level that hides all lines except those of a crash; with another one, nothing is hidden here.
HIDDEN = "3"


def hide(environment: MutableMapping[str, str]) -> bool:
    """Sets the level in `environment` unless it is set; returns whether lines are hidden."""
    return environment.setdefault(LEVEL, HIDDEN) == HIDDEN


@functools.cache
def announce() -> None:
    """Prints once, on a terminal, that TensorFlow is starting: its import takes some seconds and prints nothing."""
    if sys.stderr is not None and sys.stderr.isatty():
        print("tfdist: TensorFlow is starting, which takes some seconds", file=sys.stderr, flush=True)
