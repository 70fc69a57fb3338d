"""Examples in files: a directory of NumPy files for a split, complete or not there.

`NAME.npy` has the values of all examples; strings are in `NAME.bytes`, with their ends in `NAME.ends.npy`.
`manifest.json`, written last, has the number of examples, the kinds and the sizes of the files.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist.report import files

MANIFEST = "manifest.json"
# Seconds between two attempts to lock the files of a split.
_POLL_SECONDS = 0.2
# Rows of at least this many bytes are read, not mapped: one read of a disk each, and an error in place of a signal.
_LARGE_ROW = 16384
_ALIGNMENT = 64


class ByteStrings:
    """Byte strings of any length in one file; string i is at ends[i - 1] to ends[i]. Thread-safe."""

    dtype, shape = tf.string, (None,)

    def __init__(self, folder: Path, name: str):
        self._ends = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
        self._file = _open(folder / f"{name}.bytes")

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns the strings `ids`, int64 [n], as bytes, object [n]."""
        strings = np.empty(len(ids), object)
        starts = np.where(ids > 0, self._ends[ids - 1], 0)
        for place, (start, stop) in enumerate(zip(starts.tolist(), self._ends[ids].tolist(), strict=True)):
            strings[place] = os.pread(self._file.fileno(), stop - start, start)
            if len(strings[place]) != stop - start:
                raise OSError(errno.EIO, f"{self._file.name} is cut off")
        return strings


class Numbers:
    """The rows of an array in a file: large ones are read, each at once, and small ones are mapped. Thread-safe."""

    def __init__(self, folder: Path, name: str, kind: str):
        stored = np.load(folder / f"{name}.npy", mmap_mode="r")
        self._rows = stored if kind == "numbers" else stored.view(getattr(ml_dtypes, kind))
        self.dtype, self.shape = tf.as_dtype(self._rows.dtype), self._rows.shape
        self._row_bytes = stored.itemsize * math.prod(stored.shape[1:])
        self._file = _open(folder / f"{name}.npy") if self._row_bytes >= _LARGE_ROW else None

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows `ids`, int64 [n]: [n, ...]."""
        if self._file is None:
            return self._rows[ids]
        # TensorFlow takes arrays without a copy if they begin at a multiple of _ALIGNMENT.
        memory = np.empty(len(ids) * self._row_bytes + _ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % _ALIGNMENT :][: len(ids) * self._row_bytes]
        rows = memory.reshape(len(ids), self._row_bytes)
        for row, number in zip(rows, ids.tolist(), strict=True):
            if os.preadv(self._file.fileno(), [row], self._rows.offset + number * self._row_bytes) != self._row_bytes:
                raise OSError(errno.EIO, f"{self._file.name} is cut off")
        return memory.view(self._rows.dtype).reshape(len(ids), *self.shape[1:])


def _open(path: Path) -> BinaryIO:
    return open(path, "rb")


Column = ByteStrings | Numbers


@tf.autograph.experimental.do_not_convert
def gather(columns: Mapping[str, Column], ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the examples `ids`, int64 [n], of files that `open_files` opened: {name: [n, ...]}."""

    def read(ids: np.ndarray) -> list[np.ndarray]:
        return [column.read(ids) for column in columns.values()]

    values = tf.numpy_function(read, [ids], [column.dtype for column in columns.values()], stateful=False)
    return {
        name: tf.ensure_shape(value, [ids.shape[0], *column.shape[1:]])
        for (name, column), value in zip(columns.items(), tf.nest.flatten(values), strict=True)
    }


def write_files(folder: Path, chunks: Iterator[dict[str, np.ndarray]], num_examples: int) -> dict[str, str]:
    """Writes the chunks, joined, to one .npy file per name; returns name -> kind.

    The kind is "numbers", "bytes" (strings), or the name of a dtype that NumPy's format does not support, such as
    bfloat16, which is stored as unsigned integers.

    Raises:
        ValueError: a name cannot be that of a file, examples differ in shape, or there are several strings an example.
    """
    files: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    ends: dict[str, list[int]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            for name, values in chunk.items():
                if name not in kinds:
                    if not re.fullmatch(r"\w+", name):
                        raise ValueError(f"On disk, names must be letters, digits and underscores. Received: {name!r}")
                    kinds[name] = {"O": "bytes", "V": values.dtype.name}.get(values.dtype.kind, "numbers")
                    suffix = "bytes" if kinds[name] == "bytes" else "npy"
                    files[name] = stack.enter_context(open(folder / f"{name}.{suffix}", "wb"))
                    ends[name] = []
                    if kinds[name] != "bytes":
                        shape = (num_examples, *values.shape[1:])
                        stored = values.dtype if kinds[name] == "numbers" else np.dtype(f"u{values.itemsize}")
                        described = {"descr": stored.str, "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_2_0(files[name], described)
                _check_shape(name, kinds[name], values, shapes.setdefault(name, values.shape[1:]))
                if kinds[name] != "bytes":
                    files[name].write(np.ascontiguousarray(values).tobytes())
                else:
                    for string in values:
                        files[name].write(string)
                        ends[name].append((ends[name][-1] if ends[name] else 0) + len(string))
        for name, kind in kinds.items():
            if kind == "bytes":
                files[f"{name}.ends"] = stack.enter_context(open(folder / f"{name}.ends.npy", "wb"))
                np.save(files[f"{name}.ends"], np.asarray(ends[name], np.int64))
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return kinds


def _check_shape(name: str, kind: str, values: np.ndarray, first: tuple[int, ...]) -> None:
    if values.shape[1:] != first:
        raise ValueError(
            f"On disk, the examples of a column have one shape, but those of {name!r} differ: {list(first)} and "
            f"{list(values.shape[1:])}. Pad them to one length in the source."
        )
    if kind == "bytes" and first:
        raise ValueError(
            f"On disk, an example has one string in a column. Received: strings {list(first)} in {name!r}. Join them, "
            "or leave the column out."
        )


def write(
    folder: Path,
    chunks: Iterator[dict[str, np.ndarray]],
    num_examples: int,
    *,
    facts: Mapping[str, Any] | None = None,
    mode: int = 0o777,
) -> None:
    """Writes `num_examples` examples to the new directory `folder`, completely or not at all.

    What was there, and what killed processes left, is removed. The caller holds a lock.

    Args:
        folder: gets its name when all is written; until then it is called "NAME.writing-PID".
        chunks: see `write_files`.
        facts: JSON values to keep in the manifest.
        mode: permissions of the directory.
    """
    for left in (*folder.parent.glob(f"{folder.name}.writing-*"), folder):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder.parent / f"{folder.name}.writing-{os.getpid()}"
    temporary.mkdir(mode=mode)
    try:
        kinds = write_files(temporary, chunks, num_examples)
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        manifest = {**(facts or {}), "examples": num_examples, "arrays": kinds, "bytes": sizes}
        files.write_json(temporary / MANIFEST, manifest)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Returns the manifest of the examples in `folder`; None if they are not complete, or are damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["bytes"]}
        return manifest if sizes == manifest["bytes"] and manifest["arrays"] else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def has_only_examples(folder: Path, *, fact: str) -> bool:
    """Returns whether `folder` has files of `write` alone, complete or not, and a manifest with `fact` in it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        known = all(path.is_file() and path.suffix in (".npy", ".bytes", ".json") for path in folder.iterdir())
    except (OSError, ValueError, RecursionError):
        return False
    return known and isinstance(manifest, dict) and fact in manifest


def open_files(folder: Path, *, check_owner: bool = True) -> dict[str, Column] | None:
    """Opens the files of `write`: name -> column.

    Args:
        check_owner: only files of this user are opened: those of others could hold any examples.

    Returns None if they are not complete, are damaged, or are of another user.
    """
    try:
        if check_owner and (folder.is_symlink() or folder.stat().st_uid != os.geteuid()):
            return None
        manifest = read_manifest(folder)
        if manifest is None:
            return None
        return {
            name: ByteStrings(folder, name) if kind == "bytes" else Numbers(folder, name, kind)
            for name, kind in manifest["arrays"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


@contextlib.contextmanager
def hold_lock(path: Path, *, required: bool = True) -> Iterator[None]:
    """Holds a file lock between the processes of a host. The file remains: removing it would be a race.

    Args:
        required: it must be this user's own. False: go on without a lock, with a line, where the file system has none,
            as some parallel ones.

    Raises:
        OSError: the file is a link, or another user's.
    """
    # Neither followed nor cut off: others may write to the directory.
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644), "rb") as file:
        if required and os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{path} is another user's: remove it")
        announced = False
        # Not one call that waits: it would not return for a signal, such as a second Ctrl-C.
        while not _try_lock(file, required):
            if not announced:
                print(f"tfdist: waiting for another process that stores the examples ({path})", file=sys.stderr)
            announced = True
            time.sleep(_POLL_SECONDS)
        yield


def _try_lock(file: BinaryIO, required: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if required or error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        print(f"tfdist: no file locks here: write {file.name} from one process at a time", file=sys.stderr)
    return True
