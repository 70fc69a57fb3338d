"""Examples in files: a directory of NumPy files for a split, complete or absent.

`NAME.npy` has the values of all examples; strings are in `NAME.bytes`, with their ends in `NAME.ends.npy`.
`manifest.json`, written last, has the number of examples, the kinds and the sizes of the files.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import read_ahead
from tfdist.data.feed import Batch
from tfdist.report import files

MANIFEST = "manifest.json"
# Suffix of the name of a directory while it is being written.
WRITING = ".writing"
# Seconds between two attempts to lock the files of a split.
_POLL_SECONDS = 0.2


class ByteStrings:
    """Byte strings of any length in one file; string i is at ends[i - 1] to ends[i]. Thread-safe."""

    dtype, shape = tf.string, (None,)

    def __init__(self, folder: Path, name: str):
        self._ends = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
        self._file = open(folder / f"{name}.bytes", "rb")  # noqa: SIM115

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Returns the strings `ids`, int64 [n], as bytes, object [n]."""
        strings = np.empty(len(ids), object)
        starts = np.where(ids > 0, self._ends[ids - 1], 0)
        for place, (start, stop) in enumerate(zip(starts.tolist(), self._ends[ids].tolist(), strict=True)):
            strings[place] = os.pread(self._file.fileno(), stop - start, start)
            if len(strings[place]) != stop - start:
                raise OSError(errno.EIO, f"{self._file.name} is cut off")
        return strings


# Of numbers, the mapped array [examples, ...].
Column = ByteStrings | np.ndarray


@tf.autograph.experimental.do_not_convert
def gather(columns: Mapping[str, Column], ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the examples `ids`, int64 [n], of files that `open_files` opened: {name: [n, ...]}."""

    def read(ids: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(column[ids]) for column in columns.values()]

    values = tf.numpy_function(read, [ids], [tf.as_dtype(column.dtype) for column in columns.values()], stateful=False)
    return {
        name: tf.ensure_shape(value, [ids.shape[0], *column.shape[1:]])
        for (name, column), value in zip(columns.items(), tf.nest.flatten(values), strict=True)
    }


def chunks(load: Callable[[tf.Tensor], Batch], num_examples: int, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields `load` of the ids 0 to `num_examples`, `size` at a time. Raises ValueError if examples differ in shape."""
    ids = tf.data.Dataset.range(num_examples).batch(size)
    load = tf.autograph.experimental.do_not_convert(load)
    loaded = ids.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(1)
    shapes: dict[str, tuple[int, ...]] = {}
    for number, chunk in enumerate(read_ahead.without_autotuning(loaded).as_numpy_iterator()):
        for name, values in chunk.items():
            first, shape = shapes.setdefault(name, values.shape[1:]), values.shape[1:]
            if shape != first:
                raise ValueError(
                    f"Stored examples must have one shape, but those of {name!r} differ: {list(first)} in the first "
                    f"{size} examples, {list(shape)} from example {number * size} on: pad them to one length."
                )
        yield chunk


def write(folder: Path, chunks: Iterator[dict[str, np.ndarray]], num_examples: int) -> None:
    """Writes `num_examples` examples to the new directory `folder`, completely or not at all.

    Existing files, and those that killed processes left, are removed first. The caller holds a lock.

    Args:
        folder: gets its name when all is written; until then it is called "NAME.writing".
        chunks: the examples, in order; see `chunks`.

    Raises:
        ValueError: a name is not a valid file name, an example has several strings in a column, or a number's type is
            none of NumPy's, such as bfloat16.
    """
    temporary = folder.with_name(f"{folder.name}{WRITING}")
    for left in (folder, temporary):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        kinds = _write_columns(temporary, chunks, num_examples)
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        manifest = {"examples": num_examples, "arrays": kinds, "bytes": sizes}
        files.write_json(temporary / MANIFEST, manifest)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_columns(folder: Path, chunks: Iterator[dict[str, np.ndarray]], num_examples: int) -> dict[str, str]:
    """Writes the chunks, joined, to files; returns name -> kind."""
    kinds: dict[str, str] = {}
    lengths: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        opened = {}
        for chunk in chunks:
            for name, values in chunk.items():
                if name not in opened:
                    kinds[name] = _kind(name, values)
                    suffix = "bytes" if kinds[name] == "bytes" else "npy"
                    opened[name] = stack.enter_context(open(folder / f"{name}.{suffix}", "wb"))
                    if kinds[name] != "bytes":
                        shape = (num_examples, *values.shape[1:])
                        header = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_2_0(opened[name], header)
                if kinds[name] == "bytes":
                    opened[name].writelines(values)
                    lengths.setdefault(name, []).extend(map(len, values))
                else:
                    opened[name].write(values.tobytes())
        for name, counts in lengths.items():
            opened[f"{name}.ends"] = stack.enter_context(open(folder / f"{name}.ends.npy", "wb"))
            np.save(opened[f"{name}.ends"], np.cumsum(counts, dtype=np.int64))
        for file in opened.values():
            file.flush()
            os.fsync(file.fileno())
    return kinds


def _kind(name: str, values: np.ndarray) -> str:
    """Returns the kind of a column, "numbers" or "bytes"; raises ValueError as `write`."""
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"On disk, names must be letters, digits and underscores. Received: {name!r}")
    if values.dtype.kind == "O" and values.ndim > 1:
        raise ValueError(
            f"On disk, an example has one string in a column. Received: strings {list(values.shape[1:])} in {name!r}. "
            "Join them, or leave the column out."
        )
    if values.dtype.kind == "V":
        raise ValueError(f"On disk, numbers must be of a type of NumPy, such as float32. Received: {values.dtype.name}")
    return "bytes" if values.dtype.kind == "O" else "numbers"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Returns the manifest of the examples in `folder`; None if they are not complete, or are damaged."""
    try:
        manifest = files.read_json(folder / MANIFEST)
        sizes = {name: (folder / name).stat().st_size for name in manifest["bytes"]}
        return manifest if sizes == manifest["bytes"] and manifest["arrays"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def open_files(folder: Path) -> dict[str, Column]:
    """Opens the files of `write`, which are complete: name -> column."""
    return {
        name: ByteStrings(folder, name) if kind == "bytes" else np.load(folder / f"{name}.npy", mmap_mode="r")
        for name, kind in files.read_json(folder / MANIFEST)["arrays"].items()
    }


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds a file lock between the processes of a host. The file remains: removing it would be a race.

    Raises:
        OSError: the file cannot be written, or its file system has no locks.
    """
    with open(path, "ab") as file:
        # Polls, because a blocking call would not return on a signal, such as a second Ctrl-C.
        for attempt in itertools.count():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 0:
                    print(f"tfdist: waiting for another process that stores the examples ({path})", file=sys.stderr)
                time.sleep(_POLL_SECONDS)
        yield
