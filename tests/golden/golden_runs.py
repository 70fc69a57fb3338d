"""Starts the golden runs as processes, reads what they leave behind, and compares it with what was recorded.

Uses what users use: command lines, config fields and the files of a workdir.
"""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))  # For record.py, which pytest does not run.
import processes
import topologies

# Starts a process; test_golden.py puts one in its place that forks.
Popen = subprocess.Popen
HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parents[1]
VALUES = HERE / "values.json"
OLD_WORKDIRS = HERE / "workdir_ebcda36"
# (workers, logical devices of each)
TOPOLOGIES = {"one_device": (1, 1), "two_devices": (1, 2), "two_workers": (2, 1)}
_DIGITS = [
    *("--config=configs/digits.py", "--config.train.precision=float32"),
    *("--config.train.epochs=none", "--config.train.steps=24"),
    *("--config.learning_rate.warmup_epochs=0.2", "--config.learning_rate.peak=0.02"),
    *("--config.train.micro_batches=2", "--config.data.cache=raw", "--config.train.call_seconds=1e-6"),
    *("--config.evaluation.every.epochs=1", "--config.checkpoint.every.epochs=1", "--config.report.every.steps=1"),
    *("--config.report.every.epochs=none", "--config.cluster.connect_seconds=240"),
]
_EVERYTHING = ["--config=tests/golden/configs/everything.py"]
_SMALL = ["--config=tests/golden/configs/small.py"]
# Set the learning rate: after each epoch, and after the second one again, for the loss never falls by 9.
_RATES = [
    {"target": "tests.golden.parts:rates"},
    {"target": "keras.callbacks:ReduceLROnPlateau", "monitor": "val_loss", "min_delta": 9.0, "patience": 1},
    {"target": "tests.golden.parts:Stop"},
]
_ONE = ["--config=tests/golden/configs/features.py"]
# Runs of one feature each; their losses and the hash of their final state are compared, and no other detail.
FEATURES: dict[str, list[str] | None] = {
    "virtual_replicas": [*_ONE, "--config.train.virtual_replicas=4"],
    "recompute": [*_ONE, "--config.train.recompute=['block_*']"],
    "norm_of_replicas": [*_ONE, "--config.model.normalization=sync_batch"],
    "norm_of_groups": [*_ONE, "--config.model.normalization=batch", "--config.model.group_size=6"],
    # Pixels up to 128 overflow with the first loss scale; one example is NaN in the second epoch.
    "float16": [
        *(*_ONE, "--config.train.precision=float16", "--config.train.nonfinite=skip"),
        *("--config.data.prepare.target=tests.golden.parts:damaged", "--config.data.prepare.scale=8.0"),
    ],
    "rows": [*_ONE, "--config.model.target=tests.golden.parts:rows", "--config.data.prepare.scale=1.0"],
    "textbook": [*_ONE, "--config.data.pipeline=textbook", "--config.data.shuffle_buffer=60"],
    "fixed_shards": [*_ONE, "--config.data.shards=fixed"],
    "cache": [
        *(*_ONE, "--config.data.cache=raw", "--config.data.cache_dir={directory}/cache"),
        "--config.data.prepare.pad=0",
    ],
    "learning_rates": [*_ONE, f"--config.callbacks={_RATES}"],
    # feature_scripts.py has a function of each name.
    "fit": None,
    "train_step": None,
    "loop": None,
}
# The flags of tfdist.main; None: a script.
RUNS = {
    "digits": _DIGITS,
    "everything": _EVERYTHING,
    "small": _SMALL,
    "bfloat16": [*_SMALL, "--config.train.precision=bfloat16", "--config.communication.dtype=bfloat16"],
    "half": [
        *(*_SMALL, "--config.train.precision=float16", "--config.train.nonfinite=skip"),
        "--config.train.micro_batches=2",
    ],
    "script": None,
    **FEATURES,
}
CASES = [
    *((name, topology) for name in ("digits", "everything", "script", *FEATURES) for topology in TOPOLOGIES),
    *(("bfloat16", "two_workers"), ("half", "two_devices")),
]
# The step of 12 after which `stop_and_resume` stops: within an epoch, and no regular checkpoint.
STOPPED_AFTER = 8
# The old workdirs, and the runs that they hold.
RESUMED = {"config": "small", "script": "script"}
# On a class of machines that was never recorded: the relative differences of losses that are allowed in the first
# steps, and from then on, for the differences grow. Measured without oneDNN, with its kernels for AVX2 and on one core:
# at most 5e-7 and 8e-6 for digits, 2e-7 for everything and script, 3e-5 for half, 3e-4 and 1e-2 for an earlier
# run in bfloat16. Those of `FEATURES` without oneDNN, on two devices, and on one core: at most 2e-7, and 7e-6 for
# float16 with AVX-512.
FIRST_STEPS = 5
TOLERANCE = (1e-6, 1e-6)
TOLERANCES = {"digits": (1e-6, 5e-5), "half": (1e-4, 1e-4), "float16": (1e-4, 1e-4), "bfloat16": (1e-3, 3e-2)}
# Likewise of the weights of the resumed runs, absolute.
WEIGHTS_TOLERANCE = 1e-6
# Fields of metrics.jsonl that hold times or the length of an interval, and those that jump where a rounding
# decides which class wins.
_TIMES = ("time", "seconds", "steps", "worker_shares", "slowest_worker", "input_wait_share")
_JUMPING = ("accuracy", "top5", "top2", "best")
# What is compared of the records of `FEATURES`.
_LOSSES = ("step=", "loss=")
# What decides which kernels a processor runs.
_FLAGS = {
    *("avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_fp16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm"),
}
# With one of these TensorFlow uses oneDNN by itself.
_WITH_ONEDNN = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS")


def machine_class() -> str:
    """Names all machines on which the bits of a run are expected to be equal."""
    facts = {}
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    flags = sorted(_FLAGS & {*facts.get("flags", facts.get("Features", "")).split()})
    vendor = facts.get("vendor_id") or facts.get("CPU implementer") or platform.processor()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = [f"{name} {_version(name)}" for name in ("tensorflow", "keras", "numpy")]
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    if not _WITH_ONEDNN & {*flags}:
        settings.append("oneDNN as tfdist chooses")
    where = [platform.system(), platform.machine(), vendor, " ".join(flags), f"{cores} cores"]
    return ", ".join([*where, *versions, *settings])


def _version(name: str) -> str:
    """The version of an installed package, or of its nightly builds, which have a name of their own."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.version(f"{name}-nightly")


def _run_all(command: list[str], environments: list[dict[str, str]], code: int) -> None:
    """Runs a process in each environment, side by side; all must end with `code`, and none is left behind."""
    commands = [command] * len(environments)
    with processes.started(commands, environments, popen=Popen, grace=15.0) as started:
        outputs = [process.communicate(timeout=300)[0].decode() for process in started]
    assert [process.returncode for process in started] == [code] * len(started), "\n".join(outputs)


def train(name: str, topology: str, directory: pathlib.Path, stop_after: int | None = None) -> dict[str, Any]:
    """Trains in directory/workdir, or resumes there, and returns the recorded values of the run.

    Args:
        name: of `RUNS`.
        topology: of `TOPOLOGIES`.
        directory: for all that the run writes.
        stop_after: the step after which the run is sent SIGTERM; None: it is not.
    """
    workers, devices = TOPOLOGIES[topology]
    workdir, result = directory / "workdir", directory / "result.json"
    environments = topologies.environments(workers, PYTHONPATH=str(REPOSITORY))
    if stop_after is not None:
        environments = [env | {"GOLDEN_STOP_AFTER": str(stop_after)} for env in environments]
    _run_all(_command(name, directory, devices), environments, 0 if stop_after is None else 75)
    if name in FEATURES:
        return _feature(name, workdir, result)
    found = {"records": _records(workdir)}
    arrays = final_arrays(workdir)
    found["variables"] = [f"{key} {array.dtype} {list(array.shape)}" for key, array in arrays.items()]
    found["checkpoint"] = _digest(arrays)
    if result.exists():
        script = json.loads(result.read_text())
        found["weights"] = script["weights"]
        values = {name: values for name, values in sorted(script["values"].pop("history").items())}
        values |= script["values"].pop("evaluated") | script["values"]
        found["records"] += [" ".join(["script", *_words({name: value})]) for name, value in values.items()]
    return found


def stop_and_resume(name: str, topology: str, directory: pathlib.Path) -> dict[str, Any]:
    """As `train`, with a stop within the second epoch and a second start by the same command."""
    if name != "loop":  # It saves nothing.
        train(name, topology, directory, stop_after=STOPPED_AFTER)
    return train(name, topology, directory)


def _command(name: str, directory: pathlib.Path, devices: int) -> list[str]:
    """The command of a run, the same on all workers and for each start."""
    workdir, result, flags = directory / "workdir", directory / "result.json", RUNS[name]
    if flags is not None:
        flags = [flag.replace("{directory}", str(directory)) for flag in flags]
        flags += [f"--workdir={workdir}", f"--config.cluster.logical_devices={devices}"]
        return [sys.executable, "-m", "tfdist.main", *flags]
    if name == "script":
        return [sys.executable, "tests/golden/script.py", str(result), str(workdir), str(devices)]
    words = ["tests/golden/feature_scripts.py", name, str(result)]
    if name == "train_step":
        return [sys.executable, "-m", "tfdist.run", f"--workdir={workdir}", f"--logical_devices={devices}", *words]
    return [sys.executable, *words, str(workdir), str(devices)]


def _feature(name: str, workdir: pathlib.Path, result: pathlib.Path) -> dict[str, Any]:
    """The losses of a run of `FEATURES`, and the hash of all arrays of its model and optimizer."""
    place = workdir / "fit1" if name == "train_step" else workdir
    found: dict[str, Any] = {}
    if name != "loop":
        matches = ((re.search(r"\b(?:model|optimizer)/.*", key), array) for key, array in final_arrays(place).items())
        arrays = {match[0]: array for match, array in matches if match}
        assert any(key.startswith("optimizer/") for key in arrays), f"{place}: the checkpoint has no optimizer"
        found["state"] = _digest(arrays)
    if RUNS[name] is not None:
        words = (line.split() for line in _records(place))
        found["losses"] = [" ".join([kind, *(w for w in rest if w.startswith(_LOSSES))]) for kind, *rest in words]
    elif result.exists():
        script = json.loads(result.read_text())
        found["weights"] = script["weights"]
        found["losses"] = [" ".join(["script", *_words({key: values})]) for key, values in script["losses"].items()]
    return found


def _records(workdir: pathlib.Path) -> list[str]:
    """The reports of training and evaluation without their times; one line of text each, floats as hexadecimals."""
    found = []
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        kind = record.pop("kind")
        if kind in ("train", "evaluation"):
            kept = {k: v for k, v in record.items() if k not in _TIMES and not k.startswith("examples_per_second")}
            found.append(" ".join([kind, *_words(kept)]))
    return found


def _words(record: dict[str, Any]) -> list[str]:
    """Each field of a record as name=value; the items of a list have commas between them."""
    return [f"{name}={','.join(map(_text, v if isinstance(v, list) else [v]))}" for name, v in record.items()]


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, float) else str(value)


def final_arrays(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint, sorted by name."""
    newest = max((workdir / "checkpoints").glob("step-????????"))
    with np.load(newest / "arrays.npz") as file:
        return {name: file[name] for name in sorted(file)}


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def resume(name: str, directory: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Resumes a copy of an old workdir to the end; returns its recorded values and the final arrays."""
    shutil.copytree(OLD_WORKDIRS / name / "workdir", directory / "workdir")
    found = train(RESUMED[name], "one_device", directory)
    return found, final_arrays(directory / "workdir")


def differences(found: dict[str, Any], classes: dict[str, dict[str, Any]], name: str) -> list[str]:
    """Lists what differs from what was recorded: to the bit on a known class of machines, else within a tolerance.

    Args:
        found: what `train` returned.
        classes: class of machines -> what was recorded there.
        name: of the run, which decides the tolerance.
    """
    machine = machine_class()
    exact = machine in classes
    expected = classes[machine] if exact else next(iter(classes.values()))
    problems = [f"{key}: not in both" for key in sorted(found.keys() ^ expected.keys())]
    for key in sorted(found.keys() & expected.keys()):
        if isinstance(found[key], str):
            if exact and found[key] != expected[key]:
                problems.append(f"{key}: {expected[key]} was recorded, now {found[key]}")
            continue
        if len(found[key]) != len(expected[key]):
            problems.append(f"{key}: {len(expected[key])} lines were recorded, now {len(found[key])}")
        tolerances = (0.0, 0.0) if exact or key == "variables" else TOLERANCES.get(name, TOLERANCE)
        for before, now in zip(expected[key], found[key], strict=False):
            if before != now and not _close(before, now, tolerances):
                problems.append(f"{key}: {before!r} was recorded, now {now!r}")
    return problems


def _close(before: str, now: str, tolerances: tuple[float, float]) -> bool:
    """Whether two records agree: floats within the tolerance of the first steps or of later ones, all else exactly."""
    first, second = (dict(word.partition("=")[::2] for word in line.split()) for line in (before, now))
    tolerance = tolerances[int(first.get("step", FIRST_STEPS + 1)) > FIRST_STEPS]
    if not tolerance or first.keys() != second.keys():
        return False
    for name in first.keys() - {*_JUMPING, *(f"val_{name}" for name in _JUMPING)}:
        pairs = list(itertools.zip_longest(first[name].split(","), second[name].split(",")))
        if any(one != other and not _near(one, other, tolerance) for one, other in pairs):
            return False
    return True


def _near(one: str | None, other: str | None, tolerance: float) -> bool:
    floats = [float.fromhex(text) for text in (one, other) if text is not None and "0x" in text]
    return len(floats) == 2 and math.isclose(*floats, rel_tol=tolerance)
