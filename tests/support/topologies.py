"""Runs the command line on a given topology, and reads the results from its workdir."""

import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from launching import free_ports, run_all, worker_environment

SAME_RUN = "tests/configs/same_run.py"


def environments(workers: int, hosts: Sequence[str] = (), **variables: str) -> list[dict[str, str]]:
    """The environments of `workers` workers on this machine; `hosts`: the names that they have for it."""
    if workers == 1:
        return [worker_environment(**variables)]
    names = hosts or ["localhost"] * workers
    addresses = [f"{host}:{port}" for host, port in zip(names, free_ports(workers), strict=True)]
    tasks = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}} for index in range(workers)]
    return [worker_environment(TF_CONFIG=json.dumps(task), **variables) for task in tasks]


def command(workdir: pathlib.Path, *options: str, config: str = SAME_RUN) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "tfdist.main", f"--config={config}", f"--workdir={workdir}", *options]


def train(workdir: pathlib.Path, *options: str, workers: int = 1, devices: int = 1, config: str = SAME_RUN) -> None:
    """Trains on `workers` processes of `devices` logical CPU devices each."""
    line = command(workdir, f"--config.cluster.logical_devices={devices}", *options, config=config)
    run_all([line] * workers, environments(workers))


def arrays(workdir: pathlib.Path, step: int = 20) -> dict[str, np.ndarray]:
    """Every variable in the checkpoint of `step`: weights, statistics, the optimizer's slots."""
    with np.load(workdir / "checkpoints" / f"step-{step:08d}" / "arrays.npz") as file:
        return dict(file)


def records(workdir: pathlib.Path, kind: str) -> list[dict]:
    """The lines of metrics.jsonl of one kind."""
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def largest_difference(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> float:
    """The largest difference between two sets of equally named arrays; NaN if there is one."""
    assert first.keys() == second.keys()
    return float(np.max([np.max(np.abs(first[name].astype(float) - second[name])) for name in first]))


def assert_same_bits(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> None:
    """Asserts that two sets of arrays have the same names, and the same bits."""
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].tobytes() != second[name].tobytes()] == []


def saved_steps(workdir: pathlib.Path) -> list[int]:
    """The steps of the checkpoints, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in workdir.glob("checkpoints/step-????????"))


def cut_back(workdir: pathlib.Path, copy: pathlib.Path, newest: int | None = None) -> pathlib.Path:
    """Copies a finished run as it would be, had it been killed after the checkpoint of `newest`; None: of the last."""
    shutil.copytree(workdir, copy)
    (copy / "finished.json").unlink()
    for step in saved_steps(copy) if newest is not None else ():
        if step > newest:
            shutil.rmtree(copy / "checkpoints" / f"step-{step:08d}")
    return copy


def assert_resumed_as(whole: pathlib.Path, moved: pathlib.Path) -> None:
    """Asserts that `moved`, a copy by `cut_back` that was resumed, has the weights and steps of `whole`."""
    assert largest_difference(arrays(whole), arrays(moved)) < 1e-5
    events = [line["text"] for line in records(moved, "event")]
    assert f"resumed from {moved}/checkpoints/step-00000010" in events
    ours, theirs = (records(workdir, "train") for workdir in (moved, whole))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, 21))
    assert [line["learning_rate"] for line in ours] == [line["learning_rate"] for line in theirs]
    # Steps have different losses: equal ones mean equal examples.
    losses = [np.array([line["loss"] for line in lines]) for lines in (ours, theirs)]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-6)
    assert len(set(losses[0].round(5))) == 20
