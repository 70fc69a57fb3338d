"""Messages of the benchmark for mistakes of its user."""

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator


@contextlib.contextmanager
def one_message(command: str) -> Iterator[None]:
    """Exits with the message of a ValueError or OSError raised in the block, prefixed by `command`."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"{command}: {error}")


def check_names(flag: str, chosen: Iterable[str], known: Collection[str]) -> None:
    """Exits with one message if a word of a flag is unknown."""
    for word in chosen:
        if word not in known:
            sys.exit(f"--{flag}: there is no {word!r}; there are {', '.join(known)}.")
