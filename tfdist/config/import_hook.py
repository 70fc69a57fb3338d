"""Runs code around the import of some modules that this process has not imported yet."""

import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable, Sequence


class ImportHook(importlib.abc.MetaPathFinder):
    """Calls `around(execute, module)` to execute each of `names`; insert it at the start of `sys.meta_path`."""

    def __init__(self, names: set[str], around: Callable[[Callable[[types.ModuleType], None], types.ModuleType], None]):
        self._names, self._around = names, around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module as Python does."""
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: self._around(execute, module)
        return spec
