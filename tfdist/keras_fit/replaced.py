"""Replaces an attribute of a class or module for as long as a context lasts."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replaces `owner.name` by a function that returns `function(original, *args, **keywords)`."""
    own, original = name in vars(owner), getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(original, *args, **keywords)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
        if not own:
            delattr(owner, name)
