"""Atomic replacement of files, and appending of complete records. Imports no TensorFlow."""

import contextlib
import errno
import json
import math
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

# The errors by which an intact file system reports that a file does not exist.
NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# The path that the main thread waits for, and since when, by `time.monotonic`; None: it does not wait. See `waiting`.
_waits: tuple[str, float] | None = None


class UnreadableError(OSError, ValueError):
    """An error of the file system: the file may be intact, and another attempt may succeed."""


@contextlib.contextmanager
def waiting(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records that the main thread waits for the file system of `path` in a block; ignores other threads.

    The functions of this module that read, replace or append to a file use it. So another thread can name a file system
    that hangs, and end the process.
    """
    global _waits
    if _waits is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _waits = (os.fspath(path), time.monotonic())
    try:
        yield
    finally:
        _waits = None


def current_wait() -> tuple[str, float] | None:
    """Returns the path that the main thread waits for, and since when, by `time.monotonic`; None: it does not wait."""
    return _waits


def make_workdir(workdir: str | os.PathLike[str], kind: str = "workdir") -> None:
    """Creates `workdir` if needed, and raises OSError if no file can be written there; `kind`: its name in messages."""
    try:
        with waiting(workdir):
            os.makedirs(workdir, exist_ok=True)
            with tempfile.TemporaryFile(dir=workdir) as probe:
                probe.write(b"x")
                probe.flush()
    except OSError as error:
        if os.path.exists(workdir) and not os.path.isdir(workdir):
            raise NotADirectoryError(
                f"The {kind} {os.path.abspath(workdir)!r} is a file, and not a directory: choose another {kind}."
            ) from None
        raise type(error)(
            f"The {kind} {os.path.abspath(workdir)!r} cannot be written: {error.strerror}. "
            f"Free space, fix its permissions, or choose another {kind}."
        ) from None


def read_file(path: str | os.PathLike[str], advice: str = "") -> bytes | None:
    """Returns the content of a file; None if there is no such file.

    Raises ValueError with `advice` if it is a directory, a pipe, a device or a broken link, and its subclass
    UnreadableError if it cannot be read.
    """
    kind: type[ValueError] = ValueError
    try:
        # Without O_NONBLOCK, open waits for the other end of a pipe.
        opener = lambda name, flags: os.open(name, flags | os.O_NONBLOCK)  # noqa: E731
        with waiting(path), open(path, "rb", opener=opener) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read()
        reason = "it is not a file"
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not os.path.islink(path):
            return None
        reason = error.strerror
        kind = ValueError if isinstance(error, NO_FILE) else UnreadableError
    raise kind(f"{path} cannot be read ({reason}){advice and ': '}{advice}")


def read_json(path: str | os.PathLike[str], advice: str = "") -> dict[str, Any] | None:
    """Returns the object that a JSON file holds, or None if there is no file; `advice`: what to do if it is damaged.

    Raises ValueError, which names the file, if it cannot be read or holds something else.
    """
    content = read_file(path, advice)
    if content is None:
        return None
    try:
        value = json.loads(content)
        if isinstance(value, dict):
            return value
        reason = "not an object"
    except RecursionError:
        reason = "too many levels"
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"{path} is damaged ({reason}){advice and ': '}{advice}")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as JSON; after a crash, either the old or the new file is there, complete. Raises OSError.

    Types that JSON lacks are written as their repr, NaN and infinity as null.
    """
    replace_file(path, (json.dumps(nan_to_null(value), indent=2, allow_nan=False, default=repr) + "\n").encode())


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to a temporary file beside `path`, calls fsync, and renames it to `path`.

    Raises OSError, with the name of the file, if it cannot be written; the old one is unchanged.
    """
    temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.tmp"  # Processes of two hosts may have the same id.
    try:
        with waiting(path):
            with open(temporary, "wb") as file:
                file.write(data)
            move_complete(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # The disk or the quota is full.
            error.filename = os.fspath(path)
        raise


def move_complete(temporary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Renames a written file to `path`, with fsync; a crash or OSError leaves the old or the complete new file."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path) or ".")


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Calls fsync on a directory, unless its file system does not support this (CIFS, some FUSE file systems)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def nan_to_null(value: Any) -> Any:
    """Returns `value`, a nested dict or list, with None for NaN and infinity, which JSON does not support."""
    if isinstance(value, dict):
        return {key: nan_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append(path: str | os.PathLike[str], record: bytes) -> None:
    """Appends all of `record` to a file, or none of it; creates the file if needed. Raises OSError."""
    with waiting(path):
        # With O_NONBLOCK, a full pipe in its place raises an error instead of blocking.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
        try:
            size, rest = os.fstat(descriptor).st_size, memoryview(record)
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def describe_error(error: Exception) -> str:
    """Returns the cause of a failed write for a message: the system's text, or the type and message of `error`."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
