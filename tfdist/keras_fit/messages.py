"""Prints lines on standard error; `log_once` prints each only once, on the chief."""

import sys

# The texts, or their keys, that `log_once` has printed in this process.
_logged: set[str] = set()
# Whether `log_once` prints in this process.
_is_enabled = True


def log_only_on_chief(is_chief: bool) -> None:
    """Makes `log_once` print on the chief only."""
    global _is_enabled
    _is_enabled = is_chief


def log(text: str) -> None:
    """Prints a line."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


def log_once(text: str, key: str | None = None, *, everywhere: bool = False) -> None:
    """Prints a line on the chief, only once for each `key`; the default key is the text itself.

    Args:
        everywhere: prints it on each worker that calls this.
    """
    key = text if key is None else key
    if (_is_enabled or everywhere) and key not in _logged:
        _logged.add(key)
        log(text)
