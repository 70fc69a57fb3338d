"""Checkpoints that are complete or absent: written to a temporary directory, hashed with SHA-256, renamed into place.

    workdir/checkpoints/step-00000400/arrays.npz      every variable by path, as NumPy arrays
                                      manifest.json   step, size, SHA-256 of the arrays and of the manifest,
                                                      shapes, dtypes, the state of the training loop
                        best.json                     the step with the best evaluation

TensorFlow's format omits layers in Python lists, never calls fsync, and treats a missing index file as a fresh start.
Plain arrays avoid all three, and NumPy can read them.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import directory as directory_lib
from tfdist.report import files

FORMAT = 1
# Prefix of arrays that hold the state of callbacks, not variables.
CALLBACKS = "callbacks/"


class DamagedCheckpointError(ValueError):
    """A checkpoint directory that is incomplete, or whose content does not match its manifest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint on disk that has been verified."""

    step: int
    path: Path
    # State of the training loop, JSON values.
    state: dict[str, Any]


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, extra: Mapping[str, tf.Variable]
) -> dict[str, Any]:
    """Returns the variables of the run by unique name: `model/...`, `optimizer/...`, and those of `extra`."""
    named: dict[str, Any] = {}
    for prefix, variables in (("model", model.variables), ("optimizer", optimizer.variables)):
        for variable in variables:
            name, count = f"{prefix}/{variable.path}", 2
            while name in named:
                name, count = f"{prefix}/{variable.path}#{count}", count + 1
            named[name] = variable
    return named | dict(extra)


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
    """Writes one checkpoint and returns its directory: complete and durable on return, absent if killed before.

    Raises:
        OSError: the disk is full, read-only or unavailable. Other checkpoints are not touched.
    """
    target = directory_lib.step_path(directory, step)
    temporary = target.with_name(target.name + ".writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        directory.mkdir(exist_ok=True)  # Not its parents: fail if the workdir is no longer mounted.
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
        _sync_directory(temporary)
        if target.exists():  # Only a damaged one: a valid one would have been resumed from.
            damaged = target.with_name(target.name + ".damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            os.replace(target, damaged)
        os.replace(temporary, target)
        _sync_directory(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def verify(path: Path) -> Saved:
    """Checks sizes and hashes of the checkpoint at `path`.

    Raises:
        DamagedCheckpointError: names the file and the mismatch.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
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
        if path.name != directory_lib.step_path(path.parent, manifest["step"]).name:
            raise DamagedCheckpointError(f"{path} holds the checkpoint of step {manifest['step']}")
        return Saved(step=manifest["step"], path=path, state=dict(manifest["state"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DamagedCheckpointError):
            raise
        raise DamagedCheckpointError(f"{path}: {type(error).__name__}: {error}") from None


def newest_valid(directory: Path, report: Callable[[str], None], at_most: int | None = None) -> Saved | None:
    """Returns the newest valid checkpoint, or None if there is none; reports every damaged one that is skipped.

    Args:
        directory: the directory of the run's checkpoints.
        report: called with one line per skipped checkpoint.
        at_most: the newest step to consider; None: all steps.

    Raises:
        DamagedCheckpointError: checkpoints exist, but none is valid. Starting from scratch would overwrite the run.
    """
    damages: list[str] = []
    for step in (s for s in directory_lib.steps(directory) if at_most is None or s <= at_most):
        try:
            saved = verify(directory_lib.step_path(directory, step))
        except DamagedCheckpointError as error:
            damages.append(str(error))
            continue
        for damage in damages:
            report(f"WARNING: skipped a damaged checkpoint: {damage}")
        return saved
    if damages:
        raise DamagedCheckpointError(
            "\n  ".join([f"No valid checkpoint in {directory}:", *damages])
            + "\nRestore one from a copy, or start from scratch in another --workdir."
        )
    return None


def find(directory: Path, which: str, report: Callable[[str], None]) -> Saved:
    """Returns the verified checkpoint named by `which`: "newest", "best" or a step; see `newest_valid`.

    Raises:
        ValueError: there is no such checkpoint, or it is damaged.
    """
    if which == "newest":
        saved = newest_valid(directory, report)
        if saved is None:
            raise ValueError(f"No valid checkpoint in {directory}.")
        return saved
    if which == "best":
        best = directory_lib.read_best(directory)
        if best is None:
            raise ValueError(f"{directory} has no best checkpoint: set config.checkpoint.best_metric when training.")
        return verify(directory_lib.step_path(directory, best["step"]))
    if not which.isdigit() or not directory_lib.step_path(directory, int(which)).is_dir():
        there = ", ".join(str(step) for step in directory_lib.steps(directory)) or "none"
        raise ValueError(f'--checkpoint must be "newest", "best" or a saved step ({there}). Received: {which!r}')
    return verify(directory_lib.step_path(directory, int(which)))


def restore(saved: Saved, variables: Mapping[str, Any]) -> None:
    """Assigns the saved values to all of `variables`. Called by every worker, in cross-replica context.

    Raises:
        DamagedCheckpointError: the files changed since they were verified.
        ValueError: the checkpoint belongs to another model or optimizer; lists the variables that differ.
    """
    manifest = json.loads((saved.path / "manifest.json").read_text())
    expected = {name: [list(v.shape), keras.backend.standardize_dtype(v.dtype)] for name, v in variables.items()}
    found = manifest["variables"]
    problems = [f"{name} is missing in the checkpoint" for name in expected if name not in found]
    problems += [
        f"{name} is not in this model" for name in found if name not in expected and not name.startswith(CALLBACKS)
    ]
    problems += [
        f"{name} is {found[name][1]}{found[name][0]} in the checkpoint, {expected[name][1]}{expected[name][0]} here"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:10])
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ValueError(f"{saved.path} is a checkpoint of another model or optimizer:{shown}{more}")
    try:
        with np.load(saved.path / "arrays.npz", allow_pickle=False) as arrays:
            for name, variable in variables.items():
                tf_variable(variable).assign(_typed(arrays[name], found[name][1]))
    except (OSError, KeyError) as error:
        raise DamagedCheckpointError(f"{saved.path}/arrays.npz: {error}") from None


def callbacks_arrays(saved: Saved) -> dict[str, np.ndarray]:
    """Returns the saved arrays of the callbacks, by name.

    Raises:
        DamagedCheckpointError: the files changed since they were verified.
    """
    dtypes = json.loads((saved.path / "manifest.json").read_text())["variables"]
    try:
        with np.load(saved.path / "arrays.npz", allow_pickle=False) as arrays:
            return {n: _typed(arrays[n], dtypes[n][1]) for n in arrays.files if n.startswith(CALLBACKS)}
    except (OSError, KeyError) as error:
        raise DamagedCheckpointError(f"{saved.path}/arrays.npz: {error}") from None


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    return array if array.dtype.name == dtype else array.view(getattr(ml_dtypes, dtype))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _own_sha256(manifest: dict[str, Any]) -> str:
    """Hash of a manifest's content, independent of key order and whitespace."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
