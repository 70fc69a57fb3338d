"""Lines to standard error; those about what happens in every step are printed once."""

import sys

# The texts, or their keys, that `say_once` has printed in this process.
_said: set[str] = set()


def say(text: str) -> None:
    """Prints a line."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


def say_once(text: str, key: str | None = None) -> None:
    """Prints a line, unless one of the same `key`, by default the text itself, was printed in this process."""
    key = text if key is None else key
    if key not in _said:
        _said.add(key)
        say(text)
