"""`config.train.shard_optimizer`: slots are divided between the replicas, and no bit of the run changes."""

import json
import pathlib
import re
import runpy
import sys

import keras
import numpy as np
import processes
import pytest
import topologies
from launching import REPOSITORY, run_all, worker_environment

from tfdist.training import checkpointing, setup
from tfdist.training.step.variants.sharding import sharded_optimizer

CONFIG = "tests/configs/sharded.py"
WITHOUT = "--config.train.shard_optimizer=false"
# Slots that are divided.
DIVIDED = [f"optimizer/adam_w/{name}" for name in ("table_embeddings_momentum", "convolution_kernel_velocity")]
pytestmark = pytest.mark.usefixtures("own_process")


def differing(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> list[str]:
    """The names of arrays that do not have the same bits, or that only one has."""
    names = first.keys() | second.keys()
    same = {
        name
        for name in first.keys() & second.keys()
        if first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and first[name].tobytes() == second[name].tobytes()
    }
    return sorted(names - same)


def compare(folder: pathlib.Path, *options: str, devices: int = 1, workers: int = 1, side_by_side: int = 1) -> None:
    """Trains with and without; checks that all bits of all arrays and hashes are equal.

    The run without has `side_by_side` times as many devices and as many times fewer workers.
    """
    sizes = {"devices": devices * side_by_side, "workers": workers // side_by_side}
    processes.at_once(
        lambda: topologies.train(folder / "without", WITHOUT, *options, config=CONFIG, **sizes),
        lambda: topologies.train(folder / "with", *options, config=CONFIG, devices=devices, workers=workers),
    )
    assert differing(topologies.arrays(folder / "without"), topologies.arrays(folder / "with")) == []
    hashes = [[one["hash"] for one in topologies.records(folder / name, "state")] for name in ("without", "with")]
    assert hashes[0] == hashes[1] and len(hashes[0]) >= 4


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """A folder with the workdirs of two runs: without, on two devices, and with, on two workers."""
    folder = tmp_path_factory.mktemp("two")
    compare(folder, workers=2, side_by_side=2)
    return folder


def test_two_workers_make_the_bits_of_a_run_without_on_two_devices(on_two):
    found = topologies.arrays(on_two / "with")
    assert all(np.abs(found[name]).max() > 0 for name in DIVIDED)
    (note,) = [one["text"] for one in topologies.records(on_two / "with", "warning") if "shard_opt" in one["text"]]
    assert note.endswith("6 slots divided, a replica holds 0.03 MB of 0.06")


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(1, 2), (2, 2), (4, 1)])
def test_workers_and_devices_make_the_bits_of_a_run_without(tmp_path, workers, devices):
    compare(tmp_path, workers=workers, devices=devices)


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {},
    "Adam with amsgrad": {"amsgrad": True},
    "Nadam": {},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {"weight_decay": 0.01},
    "Lion": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_each_optimizer_makes_the_bits_of_a_run_without(tmp_path, name):
    spec = {"target": f"keras.optimizers:{name.split()[0]}", **OPTIMIZERS[name]}
    compare(tmp_path, f"--config.optimizer={spec}", devices=3)


NAN = {"target": "tests.support.lab:with_nan", "examples": [300], "scale": 1 / 16}
CASES = {
    "float16": ["--config.train.precision=float16"],
    "skip": ["--config.train.nonfinite=skip", f"--config.data.prepare={NAN}"],
    "in micro-batches": ["--config.train.micro_batches=2"],
    "rows summed first": ["--config.communication.sparse_as_dense=true"],
    "small packs": ["--config.communication.bytes_per_pack=6000"],
    "virtual replicas with audits": ["--config.train.virtual_replicas=4", "--config.consistency.audit.every=5"],
    "recomputation": ["--config.train.recompute=['dense']"],
    "copied state": ["--config.consistency.action=copy"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_other_fields_work_with_it(tmp_path, name):
    compare(tmp_path, *CASES[name], devices=2)


RESUMED = [
    ((WITHOUT,), {"devices": 2}),
    ((), {"devices": 2}),
    ((), {"workers": 4}),
    ((WITHOUT,), {}),
    ((), {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "sizes"), RESUMED)
def test_a_run_resumes_with_or_without_on_any_number_of_replicas(on_two, tmp_path, options, sizes):
    copy = topologies.cut_back(on_two / "with", tmp_path / "with")
    topologies.train(copy, *options, config=CONFIG, **sizes)
    expected = on_two / "with"  # As if it had not been interrupted.
    if sizes != {"devices": 2}:
        expected = topologies.cut_back(on_two / "without", tmp_path / "without")
        topologies.train(expected, WITHOUT, config=CONFIG, **sizes)
    assert differing(*map(topologies.arrays, (expected, copy))) == []


@pytest.mark.slow
def test_a_run_without_resumes_with_it(on_two, tmp_path):
    copy = topologies.cut_back(on_two / "without", tmp_path / "run")
    topologies.train(copy, config=CONFIG, workers=2)
    assert differing(*map(topologies.arrays, (on_two / "with", copy))) == []


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bits_of_a_run_without(tmp_path):
    longer = [
        "--config.train.steps=2000",
        "--config.checkpoint.every.steps=200",
        "--config.consistency.every.steps=500",
    ]
    longer.append("--config.train.call_seconds=0.1")
    topologies.train(tmp_path / "without", WITHOUT, *longer, config=CONFIG, devices=2)
    killed = tmp_path / "killed"
    line = topologies.command(killed, *longer, config=CONFIG)
    with processes.started([line] * 2, topologies.environments(2)) as workers:
        processes.until((killed / "checkpoints" / "step-00000200").is_dir, 200.0)
        for worker in workers:
            worker.kill()
    assert not (killed / checkpointing.FINISHED).exists()
    topologies.train(killed, *longer, config=CONFIG, workers=2)
    assert differing(*(topologies.arrays(tmp_path / name, 2000) for name in ("without", "killed"))) == []


@pytest.mark.slow
def test_each_replica_holds_its_part_of_the_slots(tmp_path):
    found = {}
    for devices in (1, 2, 4):
        line = [sys.executable, "tests/support/slots_probe.py", CONFIG, str(devices)]
        (output,) = run_all([line], [worker_environment()])
        found[devices] = json.loads(output.partition("found:")[2].splitlines()[0])
    # Numbers of the weights that are divided, and of the others; float32; Adam has two slots.
    divided, whole = 71 * 19 + 9 * 20 * 23 + 23 * 57, 23 + 2 * 23 + 57 + 57 * 10 + 10
    for devices, sizes in found.items():
        expected = 8 * (divided / devices + whole)
        assert sizes["built"] == sizes["slots"] and len(sizes["slots"]) == devices
        assert all(expected <= size <= 1.03 * expected + 100 for size in sizes["slots"])
        assert sizes["others"] == 0


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (keras.optimizers.Adafactor(), "Received: Adafactor. Set the field to False, or choose one of these."),
        (keras.optimizers.Ftrl(), "with the same bits anywhere in a tensor: SGD, RMSprop, Adam"),
        (keras.optimizers.Adam(use_ema=True), "cannot be used with config.optimizer.use_ema=True"),
    ],
)
def test_optimizers_that_need_more_than_their_part_are_refused(optimizer, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        sharded_optimizer.check(optimizer)
    assert str(raised.value).startswith("config.train.shard_optimizer=True ")


def test_one_replica_trains_as_without(tmp_path):
    keras.utils.clear_session()  # Names of variables do not depend on the tests before.
    config = runpy.run_path(str(REPOSITORY / CONFIG))["get_config"]()
    run = setup.build_run(config, tmp_path)
    assert run.log.notes[-1] == "config.train.shard_optimizer=True has no effect: one replica holds all slots."
    assert tuple(run.variables[DIVIDED[0]].shape) == (71, 19)
