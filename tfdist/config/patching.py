"""Replaces attributes of objects of TensorFlow, Keras and Python, and restores them.

Nothing else does. docs/what-is-replaced.md lists every call; tests/unit/config/test_patching.py compares the two.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """In the block, calls of `owner.name` return `function(original, *args, **keywords)`.

    Args:
        owner: a module, a class, or an object. The attribute may be inherited.
    """
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


def put(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object, which keeps it unless the call is in a block of `restored`."""
    setattr(owner, name, value)


@contextlib.contextmanager
def restored(owners: Sequence[Any], names: Sequence[str]) -> Iterator[None]:
    """Restores at its end the attributes `names` of each of `owners`, which the block may set, add or remove."""
    before = [(vars(owner), {name: vars(owner)[name] for name in names if name in vars(owner)}) for owner in owners]
    try:
        yield
    finally:
        for attributes, values in before:
            for name in names:
                attributes.pop(name, None)
            attributes.update(values)
