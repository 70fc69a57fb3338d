"""Files that stay whole: atomic replacement, and append-only files of whole records. Imports no TensorFlow."""

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from typing import Any


def make_workdir(workdir: str | os.PathLike[str]) -> None:
    """Creates `workdir` where it is missing, and proves that files can be written in it.

    Raises:
        OSError: it cannot be created or written; the message names it.
    """
    try:
        os.makedirs(workdir, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        raise type(error)(
            f"The workdir {os.path.abspath(workdir)!r} cannot be written: {error.strerror}. "
            "Free or unlock it, or give another one with --workdir."
        ) from None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` so that a crash at any moment leaves either the old file or the new one, whole.

    What JSON does not know is written as its repr, NaN and the infinities as null.

    Raises:
        OSError: the file cannot be written.
    """
    replace_file(path, (json.dumps(nan_to_null(value), indent=2, allow_nan=False, default=repr) + "\n").encode())


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Puts `data` on the disk beside `path`, then renames it over `path`."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def nan_to_null(value: Any) -> Any:
    """Returns `value` with NaN and the infinities as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: nan_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(slots=True)
class AppendOnlyFile:
    """A file that grows by whole records."""

    path: str
    descriptor: int
    size: int

    def append(self, record: bytes) -> None:
        """Appends all of `record` or none of it.

        Raises:
            OSError: it does not fit, or the file is gone.
        """
        rest = memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(record)

    def close(self) -> None:
        """Closes the file; what was appended is already with the operating system."""
        os.close(self.descriptor)


def open_append_only(path: str) -> AppendOnlyFile:
    """Opens `path` at its end, and creates it where it is missing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    return AppendOnlyFile(path, descriptor, os.fstat(descriptor).st_size)
