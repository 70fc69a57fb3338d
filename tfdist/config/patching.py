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
# Of each block of `restore_attributes`: (owner, name, what was put, what was there before).
_blocks: list[list[tuple[Any, str, Any, Any]]] = []


def replace_attribute(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object, which keeps it unless the call is in a block of `restore_after`."""
    setattr(owner, name, value)


def _present(owner: Any, name: str) -> Any:
    """Returns the attribute of an object or class itself, or `_ABSENT`; a module of TensorFlow may load it now."""
    return getattr(owner, name, _ABSENT) if isinstance(owner, types.ModuleType) else vars(owner).get(name, _ABSENT)


def _restore(owner: Any, name: str, before: Any) -> None:
    """Sets or removes an attribute of an object or class; of a layer, not by its `__setattr__`.

    Of a module by `setattr`: a lazy module of TensorFlow also sets the attribute of the module that it stands for.
    """
    if isinstance(owner, type | types.ModuleType):
        delattr(owner, name) if before is _ABSENT else setattr(owner, name, before)
    elif before is _ABSENT:
        vars(owner).pop(name, None)
    else:
        vars(owner)[name] = before


@contextlib.contextmanager
def restore_after(owners: Sequence[Any], names: Sequence[str]) -> Iterator[None]:
    """Restores at its end the attributes `names` of each of `owners`, which the block may set, add or remove."""
    before = [(owner, name, _present(owner, name)) for owner in owners for name in names]
    try:
        yield
    finally:
        for owner, name, value in before:
            if _present(owner, name) is not value:
                _restore(owner, name, value)


@contextlib.contextmanager
def patch(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """In the block, calls of `owner.name`, which may be inherited, return `function(original, *args, **keywords)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        return function(original, *args, **keywords)

    with restore_after([owner], [name]):
        setattr(owner, name, call)
        yield


@contextlib.contextmanager
def set_in_block(holder: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of an object of tfdist's own, such as settings of a thread; at the end they are as before."""
    with restore_after([holder], [*values]):
        vars(holder).update(values)
        yield


def replace_until_end(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object or class until the innermost block of `restore_attributes` ends, or for good."""
    if _blocks:
        _blocks[-1].append((owner, name, value, _present(owner, name)))
    setattr(owner, name, value)


@contextlib.contextmanager
def restore_attributes() -> Iterator[None]:
    """Undoes at its end what `replace_until_end` has set in the block, but nothing that others have set since."""
    made: list[tuple[Any, str, Any, Any]] = []
    _blocks.append(made)
    try:
        yield
    finally:
        _blocks[:] = [one for one in _blocks if one is not made]  # Empty lists are equal.
        for owner, name, value, before in reversed(made):
            if _present(owner, name) is value:
                _restore(owner, name, before)


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
