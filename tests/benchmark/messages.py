"""Messages of the benchmark for mistakes of its user."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def one_message(command: str) -> Iterator[None]:
    """Exits with the message of a ValueError or OSError raised in the block, prefixed by `command`."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"{command}: {error}")
