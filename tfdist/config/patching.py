"""Replaces attributes of objects of TensorFlow, Keras and Python, and restores them; acts around imports.

docs/what-is-replaced.md lists every call; tests/unit/config/test_patching.py compares the two, and finds assignments to
imported names elsewhere.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ABSENT = object()
# Of each block of `undo_puts`: (owner, name, what was put, what was there before).
_blocks: list[list[tuple[Any, str, Any, Any]]] = []


@contextlib.contextmanager
def patch(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """In the block, calls of `owner.name`, which may be inherited, return `function(original, *args, **keywords)`."""
    is_own, original = name in vars(owner), getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(original, *args, **keywords)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
        if not is_own:
            delattr(owner, name)


def put(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object, which keeps it unless the call is in a block of `restore_after`."""
    setattr(owner, name, value)


def put_until_end(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object or class until the end of the innermost block of `undo_puts`, or for good."""
    if _blocks:
        _blocks[-1].append((owner, name, value, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


@contextlib.contextmanager
def undo_puts() -> Iterator[None]:
    """Undoes at its end what `put_until_end` has set in the block, but nothing that others have set since."""
    made: list[tuple[Any, str, Any, Any]] = []
    _blocks.append(made)
    try:
        yield
    finally:
        _blocks[:] = [one for one in _blocks if one is not made]  # Empty lists are equal.
        for owner, name, value, before in reversed(made):
            if vars(owner).get(name) is not value:
                continue
            # Of a layer, not by its `__setattr__`.
            kind = type if isinstance(owner, type) else object
            if before is _ABSENT:
                kind.__delattr__(owner, name)
            else:
                kind.__setattr__(owner, name, before)


@contextlib.contextmanager
def restore_after(owners: Sequence[Any], names: Sequence[str]) -> Iterator[None]:
    """Restores at its end the attributes `names` of each of `owners`, which the block may set, add or remove."""
    before = [(vars(owner), {name: vars(owner)[name] for name in names if name in vars(owner)}) for owner in owners]
    try:
        yield
    finally:
        for attributes, values in before:
            for name in names:
                attributes.pop(name, None)
            attributes.update(values)


@contextlib.contextmanager
def restore_class_after(owner: type, name: str) -> Iterator[None]:
    """Restores at its end an attribute of a class, which may be inherited, and which the block may set."""
    before = vars(owner).get(name, _ABSENT)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def set_in_block(holder: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of an object of tfdist's own, such as settings of a thread; at the end they are as before."""
    with restore_after([holder], [*values]):
        vars(holder).update(values)
        yield


class ImportHook(importlib.abc.MetaPathFinder):
    """Calls `around(execute, module)` to execute each of `names`; insert it at the start of `sys.meta_path`."""

    def __init__(self, names: set[str], around: Callable[[Callable[[types.ModuleType], None], types.ModuleType], None]):
        self._names, self._around = names, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: self._around(execute, module)
        return spec
