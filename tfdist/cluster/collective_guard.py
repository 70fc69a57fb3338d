"""What one worker does alone: whatever needs the other workers is refused there, which would wait for them for ever."""

import contextlib
from collections.abc import Iterator

import keras

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


@contextlib.contextmanager
def local(model: keras.Model) -> Iterator[None]:
    """Within, Keras' own `model.predict` runs on this worker, with all data; what would sum over workers is refused."""
    before = model._distribute_strategy
    model._distribute_strategy = None  # Whatever is current: outside of scopes, that of code which knows of none.
    refused = ("fit", "evaluate", "train_on_batch", "test_on_batch")
    for name in refused:
        vars(model)[name] = lambda *args, name=name, **keywords: check(f"model.{name}")
    try:
        yield
    finally:
        model._distribute_strategy = before
        for name in refused:
            del vars(model)[name]
