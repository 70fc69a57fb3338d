"""Rejects collectives in code that runs on one worker only: they would wait for the other workers forever."""

import contextlib
from collections.abc import Iterator

# (what runs on this worker only, advice to the user), outermost first.
_running: list[tuple[str, str]] = []


@contextlib.contextmanager
def on_one_worker(what: str, advice: str) -> Iterator[None]:
    """Makes `check` raise inside the context: `what` runs on this worker only."""
    _running.append((what, advice))
    try:
        yield
    finally:
        _running.pop()


def check(purpose: str) -> None:
    """Checks that all workers can take part in `purpose`; called before each collective.

    Raises:
        RuntimeError: called inside `on_one_worker`.
    """
    if _running:
        what, advice = _running[-1]
        raise RuntimeError(f"{what} runs on one worker only, but {purpose} requires all workers: {advice}.")
