"""Atomic replacement of files, and append-only files of complete records. Imports no TensorFlow."""

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from typing import Any


def make_workdir(workdir: str | os.PathLike[str]) -> None:
    """Creates `workdir` if needed and checks that files can be written to it.

    Raises:
        OSError: the directory cannot be created or written; names it.
    """
    try:
        os.makedirs(workdir, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        if os.path.exists(workdir) and not os.path.isdir(workdir):
            raise NotADirectoryError(
                f"The workdir {os.path.abspath(workdir)!r} is a file, and not a directory: choose another workdir."
            ) from None
        raise type(error)(
            f"The workdir {os.path.abspath(workdir)!r} cannot be written: {error.strerror}. "
            "Free space, fix its permissions, or choose another workdir."
        ) from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as JSON; after a crash, either the old or the new file is there, complete.

    Other types than JSON's are written as their repr, NaN and infinity as null.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(path, (json.dumps(nan_to_null(value), indent=2, allow_nan=False, default=repr) + "\n").encode())


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to a temporary file beside `path`, calls fsync, and renames it to `path`.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        move_complete(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def move_complete(temporary: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Renames a written file to `path`, with fsync before and after: a crash leaves the old or the complete new file.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def nan_to_null(value: Any) -> Any:
    """Returns `value`, a nested dict or list, with None for NaN and infinity, which JSON does not support."""
    if isinstance(value, dict):
        return {key: nan_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(slots=True)
class AppendOnlyFile:
    """A file to which complete records are appended; `size` is its length in bytes."""

    path: str
    descriptor: int
    size: int

    def append(self, record: bytes) -> bool:
        """Appends all of `record` or none of it; see `follow` for the result.

        Raises:
            OSError: the disk is full or the file is not available.
        """
        changed = self.follow()
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(record)
        return changed

    def follow(self) -> bool:
        """Opens `path` again if it was deleted or replaced; a deleted file is written again, with all its records.

        Returns:
            Whether it was.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):
                return False
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(self.path) or "."):
                return False  # The whole directory was moved, and the open file with it.
            replace_file(self.path, os.pread(self.descriptor, self.size, 0))
        new = open_append_only(self.path)
        os.close(self.descriptor)
        self.descriptor, self.size = new.descriptor, new.size
        return True

    def close(self) -> None:
        """Closes the file; nothing is buffered."""
        os.close(self.descriptor)


def open_append_only(path: str) -> AppendOnlyFile:
    """Opens `path` for appending; creates it if needed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    return AppendOnlyFile(path, descriptor, os.fstat(descriptor).st_size)
