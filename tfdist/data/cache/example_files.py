"""Examples in files: a directory of NumPy files for a split, complete or not there.

`NAME.npy` has the values of all examples; strings are in `NAME.bytes`, with their ends in `NAME.ends.npy`.
`manifest.json`, written last, has the number of examples, the kinds and the sizes of the files.
"""

import contextlib
import fcntl
import json
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


class ByteStrings:
    """Byte strings of any length in one file; string i is content[ends[i - 1] : ends[i]]."""

    def __init__(self, folder: Path, name: str):
        self._ends = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
        self._content = np.memmap(folder / f"{name}.bytes", mode="r") if self._ends[-1] else b""

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        strings = np.empty(len(ids), object)
        for place, example in enumerate(ids):
            start = self._ends[example - 1] if example else 0
            strings[place] = bytes(self._content[start : self._ends[example]])
        return strings


def write_files(folder: Path, chunks: Iterator[dict[str, np.ndarray]], num_examples: int) -> dict[str, str]:
    """Writes the chunks, joined, to one .npy file per name; returns name -> kind.

    The kind is "numbers", "bytes" (strings), or the name of a dtype that NumPy's format does not support, such as
    bfloat16, which is stored as unsigned integers.
    """
    files: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    ends: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            for name, values in chunk.items():
                if name not in kinds:
                    if not re.fullmatch(r"\w+", name):
                        raise ValueError(f"On disk, names must be letters, digits and underscores. Received: {name!r}")
                    kinds[name] = _kind(values.dtype)
                    suffix = "bytes" if kinds[name] == "bytes" else "npy"
                    files[name] = stack.enter_context(open(folder / f"{name}.{suffix}", "wb"))
                    ends[name] = []
                    if kinds[name] != "bytes":
                        shape = (num_examples, *values.shape[1:])
                        stored = values.dtype if kinds[name] == "numbers" else np.dtype(f"u{values.itemsize}")
                        described = {"descr": stored.str, "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_2_0(files[name], described)
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


def _kind(dtype: np.dtype) -> str:
    return {"O": "bytes", "V": dtype.name}.get(dtype.kind, "numbers")


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

    Raises:
        OSError: the directory cannot be written, or is full.
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


def open_files(folder: Path, *, own: bool = True) -> dict[str, Any] | None:
    """Opens the files of `write`: name -> memory-mapped array, or `ByteStrings`.

    Args:
        own: only files of this user are opened: those of others could hold any examples.

    Returns None if they are not complete, are damaged, or are of another user.
    """
    try:
        if own and (folder.is_symlink() or folder.stat().st_uid != os.geteuid()):
            return None
        manifest = read_manifest(folder)
        if manifest is None:
            return None
        opened = {
            name: ByteStrings(folder, name) if kind == "bytes" else _numbers(folder, name, kind)
            for name, kind in manifest["arrays"].items()
        }
        return opened
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _numbers(folder: Path, name: str, kind: str) -> np.ndarray:
    array = np.load(folder / f"{name}.npy", mmap_mode="r")
    return array if kind == "numbers" else array.view(getattr(ml_dtypes, kind))


@tf.autograph.experimental.do_not_convert
def gather(array: np.ndarray | ByteStrings, ids: tf.Tensor) -> tf.Tensor:
    """Returns the examples `ids`, int64 [n], of an array that `open_files` opened: [n, ...]."""
    dtype = tf.string if isinstance(array, ByteStrings) else tf.as_dtype(array.dtype)
    values = tf.numpy_function(lambda ids: array[ids], [ids], dtype, stateful=False)
    shape = () if isinstance(array, ByteStrings) else array.shape[1:]
    return tf.ensure_shape(values, [ids.shape[0], *shape])


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds a file lock between the processes of a host. The file remains: removing it would be a race."""
    with open(path, "wb") as file:
        announced = False
        # Not one call that waits: it would not return for a signal, such as a second Ctrl-C.
        while not _try_lock(file):
            if not announced:
                print(f"tfdist: waiting for another process that stores the examples ({path})", file=sys.stderr)
            announced = True
            time.sleep(_POLL_SECONDS)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
