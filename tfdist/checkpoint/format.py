"""Checkpoints that are complete or absent: written to a temporary directory, hashed with SHA-256, renamed into place.

    workdir/checkpoints/step-00000400/arrays.npz      every variable by path, as NumPy arrays
                                      manifest.json   step, size, SHA-256 of the arrays and of the manifest,
                                                      shapes, dtypes, the state of the training loop
                        best.json                     the step with the best evaluation

TensorFlow's checkpoint format omits layers in Python lists, never calls fsync, and treats a missing index file as a
fresh start. Plain arrays avoid all three, and NumPy can read them.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import directory as directory_lib
from tfdist.config import text
from tfdist.report import files

FORMAT = 1
# Prefix of arrays with the state of callbacks.
CALLBACKS = "callbacks/"
# The number that Keras adds to names of layers and optimizers, as in dense_2.
_NUMBER = re.compile(r"_\d+")
# Seconds for which NFS may, by default, still list a checkpoint that another host has removed; seconds between
# attempts.
_STALE_SECONDS, _LOOK_SECONDS = 60.0, 0.5


class DamagedCheckpointError(ValueError):
    """A checkpoint directory that is incomplete, or whose content does not match its manifest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint on disk that has been verified."""

    step: int
    path: Path
    # State of the training loop, JSON values.
    state: dict[str, Any]
    # Shape and dtype of each array, by name.
    arrays: dict[str, tuple[list[int], str]]


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, extra: Mapping[str, tf.Variable]
) -> dict[str, Any]:
    """Returns the variables of the run by unique name: `model/...`, `optimizer/...`, and those of `extra`."""
    return unique_names("model", model.variables) | unique_names("optimizer", optimizer.variables) | dict(extra)


def unique_names(prefix: str, variables: Sequence[Any]) -> dict[str, Any]:
    """Returns variables by unique name: PREFIX/PATH, and PREFIX/PATH#2, ... for equal paths."""
    named: dict[str, Any] = {}
    for variable in variables:
        path = variable.path if isinstance(variable, keras.Variable) else variable.name.partition(":")[0]
        name, count = f"{prefix}/{path}", 2
        while name in named:
            name, count = f"{prefix}/{path}#{count}", count + 1
        named[name] = variable
    return named


def snapshot(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies the current values to host memory, name -> array; the variables may change afterwards."""
    return {name: np.array(keras.ops.convert_to_numpy(tf_variable(v)), copy=True) for name, v in variables.items()}


def num_bytes(variables: Mapping[str, Any]) -> int:
    """Returns the total size of the values in bytes."""
    return sum(v.shape.num_elements() * v.dtype.size for v in map(tf_variable, variables.values()))


def tf_variable(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable of a Keras variable, and any other variable as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def write(directory: Path, step: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> Path:
    """Writes one checkpoint atomically and durably, and returns its directory.

    Raises:
        OSError: the disk is full, read-only or unavailable. Other checkpoints are not touched.
    """
    target = directory_lib.step_path(directory, step)
    temporary = target.with_name(target.name + ".writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        if not directory.is_dir():
            directory.mkdir(exist_ok=True)  # Does not create parents: a lost mount is an error.
            files.sync_directory(directory.parent)
        temporary.mkdir()
        # NumPy's format supports only NumPy's dtypes: bfloat16 and float8 are stored as unsigned integers.
        bits = {n: a.view(f"u{a.dtype.itemsize}") if a.dtype.kind == "V" else a for n, a in arrays.items()}
        with open(temporary / "arrays.npz", "wb") as file:
            np.savez(file, **bits)
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            "step": step,
            "bytes": (temporary / "arrays.npz").stat().st_size,
            "sha256": _sha256(temporary / "arrays.npz"),
            "variables": {name: [list(array.shape), array.dtype.name] for name, array in arrays.items()},
            "state": dict(state),
        }
        manifest["own_sha256"] = _own_sha256(manifest)
        files.replace_file(str(temporary / "manifest.json"), json.dumps(manifest, indent=1).encode())
        files.sync_directory(temporary)
        _replace(temporary, target)
        files.sync_directory(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _replace(temporary: Path, target: Path) -> None:
    """Renames `temporary` to `target`, unless a valid checkpoint is there; renames a damaged one to `.damaged`."""
    if os.path.lexists(target):
        try:
            verify(target)
        except DamagedCheckpointError:
            damaged = target.with_name(target.name + ".damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            os.replace(target, damaged)
        else:
            shutil.rmtree(temporary, ignore_errors=True)
            return
    os.replace(temporary, target)


def _rename_complete(directory: Path) -> None:
    """Gives complete checkpoints their final names if a killed run had not renamed them yet, or was removing them."""
    for suffix in (".writing", ".removing"):
        for path in directory.glob(f"step-*{suffix}"):
            with contextlib.suppress(DamagedCheckpointError):  # Incomplete.
                verify(path)
                _replace(path, path.with_suffix(""))
                files.sync_directory(directory)


def verify(path: Path) -> Saved:
    """Checks sizes and hashes of the checkpoint at `path`.

    Raises:
        DamagedCheckpointError: names the file and the reason.
        OSError: a file could not be read, and may be intact.
    """
    try:
        manifest = files.read_json(path / "manifest.json")
        if manifest is None:
            raise DamagedCheckpointError(f"{path} has no manifest.json")
        if manifest["format"] != FORMAT:
            raise DamagedCheckpointError(
                f"{path} has format {manifest['format']}, but this version of tfdist reads format {FORMAT}"
            )
        size = (path / "arrays.npz").stat().st_size
        if size != manifest["bytes"]:
            raise DamagedCheckpointError(f"{path}/arrays.npz has {size} bytes instead of {manifest['bytes']}")
        if _sha256(path / "arrays.npz") != manifest["sha256"]:
            raise DamagedCheckpointError(f"{path}/arrays.npz does not match its SHA-256")
        if manifest.pop("own_sha256", None) != _own_sha256(manifest):
            raise DamagedCheckpointError(f"{path}/manifest.json does not match its own SHA-256")
        if path.stem != directory_lib.step_path(path.parent, manifest["step"]).name:
            raise DamagedCheckpointError(f"{path} holds the checkpoint of step {manifest['step']}")
        arrays = {name: (list(shape), str(dtype)) for name, (shape, dtype) in manifest["variables"].items()}
        return Saved(step=manifest["step"], path=path, state=dict(manifest["state"]), arrays=arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if _is_raised_unchanged(error):
            raise
        raise DamagedCheckpointError(f"{path}: {type(error).__name__}: {error}") from None


def _is_raised_unchanged(error: Exception) -> bool:
    """Returns whether to raise `error` unchanged, instead of reporting damaged content."""
    return isinstance(error, DamagedCheckpointError | OSError) and not isinstance(error, files.NO_FILE)


def newest_valid(directory: Path, report: Callable[[str], None], *, holds_lock: bool = False) -> Saved | None:
    """Returns the newest valid checkpoint, or None if there is none; reports every damaged one that is skipped.

    Args:
        holds_lock: whether this run holds the lock of the workdir; see `_rename_complete`.

    Raises:
        DamagedCheckpointError: checkpoints exist, but none is valid, or `directory` is not a directory. Starting from
            scratch would overwrite the run.
        OSError: a checkpoint could not be read for a minute. It is not skipped: a run that resumes from an older one
            would overwrite it.
    """
    if os.path.lexists(directory) and not directory.is_dir():
        raise DamagedCheckpointError(f"{directory} is not a directory: restore it, or choose another --workdir.")
    damages: dict[int, str] = {}
    give_up = time.monotonic() + _STALE_SECONDS
    while True:
        try:
            if holds_lock:
                _rename_complete(directory)
            there = directory_lib.steps(directory)
            steps = [step for step in there if step not in damages]
            if not steps:
                break
            path = directory_lib.step_path(directory, steps[0])
            if path.is_symlink() and not path.exists():  # A link to itself cannot be read, either.
                raise DamagedCheckpointError(f"{path} is a link to nothing.")
            saved = verify(path)
        except DamagedCheckpointError as error:
            if os.path.lexists(path) or time.monotonic() > give_up:
                damages[steps[0]] = str(error)
            else:  # Removed by another run, which has written a newer checkpoint.
                time.sleep(_LOOK_SECONDS)
            continue
        except OSError as error:
            if time.monotonic() > give_up:
                raise OSError(
                    f"{directory} has a checkpoint that cannot be read, but may be intact: {error}. Repair the file "
                    "system, and run the same command again; or move that checkpoint away to resume from an older one."
                ) from None
            time.sleep(_LOOK_SECONDS)
            continue
        for damage in damages.values():
            report(f"WARNING: skipped a damaged checkpoint: {damage}")
        return saved
    if damages:
        raise DamagedCheckpointError(
            "\n  ".join([f"No valid checkpoint in {directory}:", *damages.values()])
            + "\nRestore one from a copy, or start from scratch in another --workdir."
        )
    return None


def find(
    directory: Path, which: str, report: Callable[[str], None] = lambda text: print(f"tfdist: {text}", file=sys.stderr)
) -> Saved:
    """Returns a verified checkpoint.

    Args:
        which: "newest", "best" or a step.

    Raises:
        ValueError: there is no such checkpoint.
        DamagedCheckpointError, OSError: as for `newest_valid` and `verify`.
    """
    if which == "newest":
        saved = newest_valid(directory, report)
        if saved is None:
            raise ValueError(f"No valid checkpoint in {directory}: train first, or check --workdir.")
        return saved
    if which == "best":
        best = directory_lib.read_best(directory)
        if best is None:
            raise ValueError(
                f"{directory} has no best checkpoint: set config.checkpoint.best_metric when training. If it was set, "
                f"{directory_lib.BEST} is damaged, or the checkpoint could not be written; see the warnings in "
                "metrics.jsonl."
            )
        return verify(directory_lib.step_path(directory, best["step"]))
    if not which.isdigit() or not directory_lib.step_path(directory, int(which)).is_dir():
        there = ", ".join(str(step) for step in directory_lib.steps(directory)) or "none"
        raise ValueError(f'--checkpoint must be "newest", "best" or a saved step ({there}). Received: {which!r}')
    return verify(directory_lib.step_path(directory, int(which)))


def check_variables(saved: Saved, variables: Mapping[str, Any]) -> dict[str, str]:
    """Checks that a checkpoint holds exactly `variables`; a ValueError lists the differences.

    Returns:
        Name here -> name in the checkpoint; empty if all are equal. Names differ if a restarted script creates other
        layers first, because Keras numbers unnamed layers.
    """
    expected = {name: (list(v.shape), keras.backend.standardize_dtype(v.dtype)) for name, v in variables.items()}
    found = {name: array for name, array in saved.arrays.items() if not name.startswith(CALLBACKS)}
    ours, theirs = ([(_NUMBER.sub("", name), *array) for name, array in each.items()] for each in (expected, found))
    if ours == theirs and expected.keys() != found.keys():
        return dict(zip(expected, found, strict=True))
    problems = [f"{name} is missing in the checkpoint" for name in expected if name not in found]
    problems += [f"{name} is not in this model" for name in found if name not in expected]
    problems += [
        f"{name} is {found[name][1]}{found[name][0]} in the checkpoint, {expected[name][1]}{expected[name][0]} here"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if problems:
        shown = text.list_names([f"\n  {problem}" for problem in problems], 10, "", "\n  and ")
        raise ValueError(f"{saved.path} is a checkpoint of another model, optimizer or Keras release:{shown}")
    return {}


def read(saved: Saved, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, saved array) for each of `names`; raises the same errors as `verify`."""
    try:
        with np.load(saved.path / "arrays.npz", allow_pickle=False) as arrays:
            for name in names:
                yield name, _with_dtype(arrays[name], saved.arrays[name][1])
    except MemoryError:
        raise
    except Exception as error:  # NumPy and zipfile raise about seven error types for damaged files.
        if _is_raised_unchanged(error):
            raise
        raise DamagedCheckpointError(f"{saved.path}/arrays.npz: {type(error).__name__}: {error}") from None


def callback_names(saved: Saved) -> list[str]:
    """Returns the names of the arrays that hold the state of callbacks."""
    return [name for name in saved.arrays if name.startswith(CALLBACKS)]


def _with_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Converts an array that was read from a file to its saved dtype, which NumPy itself may lack (bfloat16)."""
    if array.dtype.name != dtype:
        return array.view(dtype)  # NumPy knows the name of the dtype: TensorFlow has registered it.
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # Native byte order: dtype names have none.


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _own_sha256(manifest: dict[str, Any]) -> str:
    """Hash of a manifest's content, independent of key order and whitespace."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
