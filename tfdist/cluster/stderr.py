"""Messages to standard error, which name the worker if there are several."""

import os
import sys


def print_error(text: str) -> None:
    """Prints a message of this worker to standard error."""
    print(f"tfdist: {prefix()}{text}", file=sys.stderr)


def prefix() -> str:
    """Returns the prefix of messages: "worker 1: "; "" for a single worker."""
    from tfdist.cluster.discovery import environment

    spec = environment.resolve_roughly(os.environ)
    return f"worker {spec.rank}: " if spec.num_workers > 1 else ""
