"""Replaces attributes of objects of TensorFlow, Keras and Python, and restores them; calls functions around imports.

docs/what-is-replaced.md lists every call; tests/unit/config/test_patching.py compares the two, and finds assignments to
imported names elsewhere.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ABSENT = object()
# The blocks of `restore_attributes`, the innermost last.
_blocks: list[contextlib.ExitStack] = []


def replace_attribute(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object for good, unless a block of `restore_after` restores it."""
    setattr(owner, name, value)


def _present(owner: Any, name: str) -> Any:
    """Returns an attribute that an object or class has itself, or `_ABSENT`; may load a lazy module of TensorFlow."""
    return getattr(owner, name, _ABSENT) if isinstance(owner, types.ModuleType) else vars(owner).get(name, _ABSENT)


def _restore(owner: Any, name: str, before: Any, put: Any = _ABSENT) -> None:
    """Restores the value `before` of an attribute, or removes it; with `put`, only if that is still its value.

    Does not call a layer's setter. For a module it calls `setattr`: a lazy module of TensorFlow also sets the attribute
    of the module that it stands for.
    """
    now = _present(owner, name)
    if now is before or (put is not _ABSENT and now is not put):
        return
    if isinstance(owner, type | types.ModuleType):
        delattr(owner, name) if before is _ABSENT else setattr(owner, name, before)
    elif before is _ABSENT:
        vars(owner).pop(name, None)
    else:
        vars(owner)[name] = before


@contextlib.contextmanager
def restore_after(owners: Sequence[Any], names: Sequence[str]) -> Iterator[None]:
    """The block may set, add or remove the attributes `names` of each of `owners`; at its end they are restored."""
    with contextlib.ExitStack() as stack:
        for owner, name in itertools.product(owners, names):
            stack.callback(_restore, owner, name, _present(owner, name))
        yield


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
    """Sets attributes of an object of tfdist, such as settings of a thread, and restores them after the block."""
    with restore_after([holder], [*values]):
        vars(holder).update(values)
        yield


def replace_until_end(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of an object or class until the innermost `restore_attributes` block ends, if there is one."""
    if _blocks:
        _blocks[-1].callback(_restore, owner, name, _present(owner, name), value)
    setattr(owner, name, value)


@contextlib.contextmanager
def restore_attributes() -> Iterator[None]:
    """At the end of the block, undoes what `replace_until_end` set in it, unless others have set it since."""
    with contextlib.ExitStack() as block:
        _blocks.append(block)
        block.callback(_blocks.remove, block)
        yield


class ImportHook(importlib.abc.MetaPathFinder):
    """Calls `around(execute, module)` to execute each of the modules `names`; insert it first in `sys.meta_path`."""

    def __init__(self, names: set[str], around: Callable[[Callable[[types.ModuleType], None], types.ModuleType], None]):
        self._names, self._around = names, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_once(module: types.ModuleType) -> None:
            self._names.discard(fullname)  # Not before: others may only ask whether the module exists.
            self._around(execute, module)

        spec.loader.exec_module = execute_once
        return spec
