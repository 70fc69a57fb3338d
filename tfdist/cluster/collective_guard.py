"""What one worker does alone: whatever needs the other workers is refused there, which would wait for them for ever."""

import contextlib
from collections.abc import Iterator

# What this worker does alone, in words, and what to do where it needs the others; outermost first.
_doing: list[tuple[str, str]] = []


@contextlib.contextmanager
def alone(what: str, advice: str) -> Iterator[None]:
    """Within, `check` raises: this worker does `what` alone."""
    _doing.append((what, advice))
    try:
        yield
    finally:
        _doing.pop()


def check(purpose: str) -> None:
    """Notes that all workers are needed for `purpose`.

    Raises:
        RuntimeError: this worker does something alone.
    """
    if _doing:
        what, advice = _doing[-1]
        raise RuntimeError(f"{what} runs on one worker alone, and {purpose} needs all of them: {advice}.")
