"""Temporary files and directories of a script: the workers of a host share them, by names that the chief draws."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

from tfdist.keras_fit.script import context


def make_directory(original: Callable[..., str], *args: Any, **keywords: Any) -> str:
    """Makes a directory as `tempfile.mkdtemp`."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    path = context.once(place, lambda: original(*args, **keywords))
    if context.is_first_of_host():
        with context.running(), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    context.note_temporary(path)
    context.meet(f"{place} made")
    return path


def clean_up(original: Callable[..., None], directory: tempfile.TemporaryDirectory) -> None:
    """Removes a directory as `tempfile.TemporaryDirectory.cleanup`, when all workers are done with it."""
    place = context.calling_line()
    if place:
        context.meet(f"{place} cleanup")
    with context.running():  # The first of a host removes it; the others find nothing.
        original(directory)


def make_file(original: Callable[..., tuple[int, str]], *args: Any, **keywords: Any) -> tuple[int, str]:
    """Makes a file as `tempfile.mkstemp`."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    handle = None

    def make() -> str:
        nonlocal handle
        handle, path = original(*args, **keywords)
        return path

    path = context.once(place, make)
    context.note_temporary(path)
    return (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if handle is None else handle), path


def make_named_file(
    original: Callable[..., Any],
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: str | None = None,
    delete: bool = True,
    *,
    errors: str | None = None,
    **keywords: Any,
) -> Any:
    """Makes a file as `tempfile.NamedTemporaryFile`."""
    opened = {"buffering": buffering, "encoding": encoding, "newline": newline, "errors": errors}
    place = context.calling_line()
    if not place:
        given = {"suffix": suffix, "prefix": prefix, "dir": dir, "delete": delete}
        return original(mode, **opened, **given, **keywords)
    handle, path = tempfile.mkstemp(suffix, prefix, dir)
    os.close(handle)
    return _NamedFile(path, mode, opened, delete and keywords.get("delete_on_close", True), delete, place)


class _NamedFile(contextlib.AbstractContextManager):
    """An open temporary file with a name; `deletes`: with the last of its uses, or when it is closed."""

    def __init__(self, path: str, mode: str, options: dict[str, Any], on_close: bool, deletes: bool, place: str):
        self.name, self.delete = path, deletes
        self._on_close, self._place, self._exists = on_close, place, True
        # Not `x`: the file exists.
        self.file = open(path, mode.replace("x", "w"), **options)  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __iter__(self) -> Any:
        return iter(self.file)

    def __exit__(self, *error: Any) -> None:
        self.close()
        self._remove(self.delete)

    def close(self) -> None:
        """Closes the file on every worker, and removes it if it shall not outlive that."""
        self.file.close()
        self._remove(self._on_close)

    def _remove(self, due: bool) -> None:
        if due and self._exists:
            self._exists = False
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.name)
