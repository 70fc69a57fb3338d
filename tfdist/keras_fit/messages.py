"""Lines to standard error; those about what happens in every step are printed once."""

import sys

# The texts, or their keys, that `log_once` has printed in this process.
_said: set[str] = set()
# Whether `log_once` prints in this process.
_speaks = True


def speak_if(is_chief: bool) -> None:
    """Makes `log_once` print on the chief only."""
    global _speaks
    _speaks = is_chief


def say(text: str) -> None:
    """Prints a line."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


def log_once(text: str, key: str | None = None, *, everywhere: bool = False) -> None:
    """Prints a line on the chief, only once for each `key`; the default key is the text itself.

    Args:
        everywhere: prints it on each worker that calls this.
    """
    key = text if key is None else key
    if (_speaks or everywhere) and key not in _said:
        _said.add(key)
        say(text)
