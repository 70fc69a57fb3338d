"""Checkpoints that are whole or absent: written aside, checked by SHA-256, put in place by one rename.

    workdir/checkpoints/step-00000400/arrays.npz      every variable by path, as NumPy arrays
                                      manifest.json   step, sizes, SHA-256 (of itself, too), shapes, dtypes, the
                                                      loop's own state
                        best.json                     which step has the best evaluation

TensorFlow's own format leaves out sub-layers in Python lists, never calls fsync, and takes a missing index file for a
fresh start; plain arrays have none of that, and anyone can read them with NumPy.
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
# How the names of arrays begin that are no variables, but what callbacks remember.
CALLBACKS = "callbacks/"


class DamagedCheckpointError(ValueError):
    """A checkpoint directory that is incomplete, or whose content is not what its manifest says."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint on disk that has been verified."""

    step: int
    path: Path
    # What the loop wants to know again: JSON values.
    state: dict[str, Any]


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, more: Mapping[str, tf.Variable]
) -> dict[str, Any]:
    """Returns every variable of the run by a unique name: `model/...`, `optimizer/...`, and `more`."""
    named: dict[str, Any] = {}
    for prefix, variables in (("model", model.variables), ("optimizer", optimizer.variables)):
        for variable in variables:
            name, count = f"{prefix}/{variable.path}", 2
            while name in named:
                name, count = f"{prefix}/{variable.path}#{count}", count + 1
            named[name] = variable
    return named | dict(more)


def snapshot(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies the variables' present values to host memory; any variable may then change."""
    return {name: np.array(keras.ops.convert_to_numpy(_value(v)), copy=True) for name, v in variables.items()}


def num_bytes(variables: Mapping[str, Any]) -> int:
    """The size of the variables' values."""
    return sum(v.shape.num_elements() * v.dtype.size for v in map(_value, variables.values()))


def _value(variable: Any) -> tf.Variable:
    return variable.value if isinstance(variable, keras.Variable) else variable


def write(directory: Path, step: int, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> Path:
    """Writes one checkpoint: whole and durable when this returns, absent when it is killed before.

    Raises:
        OSError: the disk is full, read-only or gone. No other checkpoint is touched.
    """
    target = directory_lib.step_path(directory, step)
    aside = target.with_name(target.name + ".writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        directory.mkdir(exist_ok=True)  # Not its parents: a workdir that is no longer mounted shall be missed.
        aside.mkdir()
        # NumPy's format knows its own dtypes alone: bfloat16 and the like travel as their bits.
        bits = {n: a.view(f"u{a.dtype.itemsize}") if a.dtype.kind == "V" else a for n, a in arrays.items()}
        with open(aside / "arrays.npz", "wb") as file:
            np.savez(file, **bits)
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            "step": step,
            "bytes": (aside / "arrays.npz").stat().st_size,
            "sha256": _sha256(aside / "arrays.npz"),
            "variables": {name: [list(array.shape), array.dtype.name] for name, array in arrays.items()},
            "state": dict(state),
        }
        manifest["own_sha256"] = _own_sha256(manifest)
        files.replace_file(str(aside / "manifest.json"), json.dumps(manifest, indent=1).encode())
        _sync_directory(aside)
        if target.exists():  # Only a damaged one can stand here: a whole one would have been resumed from.
            damaged = target.with_name(target.name + ".damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            os.replace(target, damaged)
        os.replace(aside, target)
        _sync_directory(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def verify(path: Path) -> Saved:
    """Checks that the checkpoint at `path` is whole.

    Raises:
        DamagedCheckpointError: says what is wrong with it.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise DamagedCheckpointError(f"{path} has format {manifest['format']}, and this tfdist reads {FORMAT}")
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
    """Returns the newest whole checkpoint, or None where there are none; names every damaged one that it passes over.

    Args:
        at_most: newer steps are not looked at; None: all are.

    Raises:
        DamagedCheckpointError: there are some, and none is whole: a run shall not begin anew over what was one.
    """
    damages: list[str] = []
    for step in (s for s in directory_lib.steps(directory) if at_most is None or s <= at_most):
        try:
            saved = verify(directory_lib.step_path(directory, step))
        except DamagedCheckpointError as error:
            damages.append(str(error))
            continue
        for damage in damages:
            report(f"WARNING: a damaged checkpoint is passed over: {damage}")
        return saved
    if damages:
        raise DamagedCheckpointError(
            "\n  ".join([f"No checkpoint in {directory} is whole:", *damages])
            + "\nPut a copy of one there, or begin anew in another --workdir."
        )
    return None


def find(directory: Path, which: str, report: Callable[[str], None]) -> Saved:
    """Returns the verified checkpoint that `which` names: "newest", "best", or a step; see `newest_valid`.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    if which == "newest":
        saved = newest_valid(directory, report)
        if saved is None:
            raise ValueError(f"There is no whole checkpoint in {directory}.")
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
    """Assigns the saved values to all of `variables`; every worker calls it, in cross-replica context.

    Raises:
        DamagedCheckpointError: the files changed since they were verified.
        ValueError: the checkpoint is of another model or optimizer; names the variables that differ.
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
                _value(variable).assign(_typed(arrays[name], found[name][1]))
    except (OSError, KeyError) as error:
        raise DamagedCheckpointError(f"{saved.path}/arrays.npz: {error}") from None


def callbacks_arrays(saved: Saved) -> dict[str, np.ndarray]:
    """Returns the arrays that the callbacks have left in a checkpoint, by name.

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
    """The digest of what a manifest says, however it is laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
