"""Promises on GPUs, compared with the CPU of the same machine and with themselves: `pytest -m gpu` (docs/gpu.md).

With TFDIST_TESTS_GPU_ON=cpu the same tests run on two logical CPU devices.
"""

import json
import re
import signal
import sys
import time

import accelerators
import numpy as np
import processes
import pytest
import topologies
from launching import REPOSITORY, worker_environment
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdist.cluster import interruption

RESNET = "tests/configs/gpu.py"
DIGITS = "configs/digits.py"
# Float32 products in full precision: GPUs from compute capability 8.0 otherwise use TF32.
FULL = {"NVIDIA_TF32_OVERRIDE": "0"}
EXACT = {"TF_DETERMINISTIC_OPS": "1"}
FEW_STEPS = (
    *("--config.train.epochs=none", "--config.train.steps=20", "--config.learning_rate.peak=0.01"),
    *("--config.learning_rate.warmup_epochs=0", "--config.report.every.steps=1", "--config.report.every.epochs=none"),
    "--config.report.tensorboard=false",
)
# Config, options, last step, and how much a weight may differ after it: absolute, and relative to its size.
COMPARED = {
    "digits": (DIGITS, (*FEW_STEPS, "--config.train.xla=false"), 20, 1e-4, 1e-4),
    "resnet20": (RESNET, (), 6, 1e-3, 1e-3),
}
# Seconds in which the other worker must name one that was killed.
PATIENCE = 60.0


@pytest.fixture(scope="session")
def devices():
    """The GPUs; the CPU while the tests are developed."""
    found, reason = accelerators.find()
    if found is None:
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def several(devices):
    """At least two of them."""
    if len(devices.names) < 2:
        pytest.skip(f"there is 1 {devices.kind}, and this test needs 2")
    return devices


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """name of COMPARED -> the workdir of its run on the CPU."""
    workdirs = {}

    def get(name):
        if name not in workdirs:
            config, options, *_ = COMPARED[name]
            workdirs[name] = tmp_path_factory.mktemp(f"cpu-{name}")
            cpu = accelerators.Devices("CPU", ("0",))
            cpu.train(workdirs[name], *options, config=config)
        return workdirs[name]

    return get


def assert_close(first, second, step, absolute, relative):
    """Asserts that two runs have nearly the same variables and losses."""
    ours, theirs = (topologies.arrays(workdir, step) for workdir in (first, second))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=relative, atol=absolute, err_msg=name)
    losses = [[line["loss"] for line in topologies.records(workdir, "train")] for workdir in (first, second)]
    assert len(losses[0]) == step
    np.testing.assert_allclose(losses[0], losses[1], rtol=10 * relative, atol=absolute)


def assert_equal(first, second, step):
    """Asserts that two runs have the same variables, to the bit."""
    topologies.assert_same_bits(*(topologies.arrays(workdir, step) for workdir in (first, second)))


@pytest.mark.parametrize("name", COMPARED)
def test_one_gpu_trains_as_the_cpu_does(devices, on_cpu, tmp_path, name):
    config, options, step, absolute, relative = COMPARED[name]
    (output,) = devices.train(tmp_path, *options, config=config, **FULL)
    assert f"1 {devices.kind}" in output
    assert_close(on_cpu(name), tmp_path, step, absolute, relative)
    described = json.loads((tmp_path / "environment.json").read_text())["gpu"]
    assert bool(described) == (devices.kind == "GPU")
    if described:
        assert len(described["gpus"]) == 1 and described["tf32"] is False and described["driver"]


def test_two_runs_are_equal_to_the_bit(devices, tmp_path):
    for name in "ab":
        devices.train(tmp_path / name, config=RESNET, **EXACT)
    assert_equal(tmp_path / "a", tmp_path / "b", 6)


def test_a_killed_run_goes_on_to_the_same_bits(devices, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = (
        *FEW_STEPS,
        "--config.train.steps=200",
        "--config.checkpoint.every.steps=20",
        "--config.checkpoint.keep=20",
    )
    options += ("--config.train.call_seconds=0.001",)
    devices.train(whole, *options, config=DIGITS, **EXACT)
    command = devices.command(killed, *options, config=DIGITS)
    with devices.started([command], devices.environments(1, **EXACT)) as (process,):
        saved = killed / "checkpoints" / "step-00000060"
        processes.until(lambda: saved.exists() or process.poll() is not None, accelerators.SECONDS)
        process.kill()
        output = process.communicate()[0].decode()
    assert saved.exists() and not (killed / "finished.json").exists(), output
    (output,) = devices.train(killed, *options, config=DIGITS, **EXACT)
    assert "resumed from" in output
    assert_equal(whole, killed, 200)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_learns(devices, tmp_path, precision):
    options = ("--config.train.epochs=4", f"--config.train.precision={precision}", "--config.report.tensorboard=false")
    devices.train(tmp_path, *options, config=DIGITS)
    losses = [line["loss"] for line in topologies.records(tmp_path, "train")]
    assert np.isfinite(losses).all()
    assert topologies.records(tmp_path, "evaluation")[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("implementation", ["auto", "ring"])
@pytest.mark.parametrize(("workers", "replicas"), [(1, 2), (2, 1)])
def test_two_gpus_train_as_one_does(several, tmp_path, workers, replicas, implementation):
    assert_two_are_as_one(several, tmp_path, implementation, workers=workers, replicas=replicas)


def test_two_workers_that_share_a_gpu_train_as_one_does(devices, tmp_path):
    assert_two_are_as_one(devices, tmp_path, "ring", workers=2, replicas=1)


def assert_two_are_as_one(devices, tmp_path, implementation, *, workers, replicas):
    options = (f"--config.communication.implementation={implementation}",)
    devices.train(tmp_path / "one", config=topologies.SAME_RUN, **FULL)
    outputs = devices.train(
        tmp_path / "two", *options, config=topologies.SAME_RUN, workers=workers, devices=replicas, **FULL
    )
    assert_close(tmp_path / "one", tmp_path / "two", 20, 1e-4, 1e-4)
    if workers == 2:
        chosen = "NCCL at" if devices.kind == "GPU" else "RING over TCP at"
        assert (chosen if implementation == "auto" else "RING over gRPC at") in outputs[0]


def test_no_step_copies_from_the_gpu(devices, tmp_path):
    profiled = 240
    # Without an evaluation, whose first convolutions try algorithms and copy 8 bytes for each.
    options = (
        *FEW_STEPS,
        "--config.evaluation.every.epochs=none",
        *("--config.train.steps=260", "--config.report.every.steps=260", "--config.train.call_seconds=60"),
        *("--config.report.tensorboard=true", f"--config.report.profile=[21,{20 + profiled}]"),
    )
    devices.train(tmp_path, *options, config=DIGITS)
    (profile,) = (tmp_path / "tensorboard" / "train").glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(profile.read_bytes())
    planes = [plane.name for plane in space.planes]
    assert any(name.startswith("/device:GPU" if devices.kind == "GPU" else "/host:CPU") for name in planes), planes
    found = accelerators.copies(space)
    # Each execution returns one vector, and the last one is followed by the checkpoint: some 50.
    assert found["MemcpyD2H"] < profiled / 2, found
    print(f"{profiled} steps: {dict(found)}")


def test_xla_changes_nothing_but_roundings(devices, on_cpu, tmp_path):
    devices.train(tmp_path, *FEW_STEPS, "--config.train.xla=true", config=DIGITS, **FULL)
    assert_close(on_cpu("digits"), tmp_path, 20, 1e-3, 1e-3)


MEMORY = """
import subprocess, sys
import tensorflow as tf
import tfdist
from tfdist import config as c

def used():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()))

on_gpu = sys.argv[1] == "GPU"
before = used() if on_gpu else 0
cluster = tfdist.connect(c.ClusterOptions(gpus=1 if on_gpu else 0))
with cluster.scope():
    tf.Variable(tf.ones([256, 256])).numpy()
print((used() if on_gpu else 0) - before)
"""


def test_memory_growth_takes_what_is_needed(devices):
    command = [sys.executable, "-c", MEMORY, devices.kind]
    with devices.started([command], devices.environments(1, TF_FORCE_GPU_ALLOW_GROWTH="true")) as (process,):
        output = process.communicate(timeout=accelerators.SECONDS)[0].decode()
    assert process.returncode == 0, output
    assert int(output.split()[-1]) < 4096, output  # MiB; without growth, nearly all of the GPU.


def test_a_worker_that_is_killed_in_the_sum_is_named(several, tmp_path):
    assert_a_killed_worker_is_named(several, tmp_path)


def test_a_killed_worker_that_shares_a_gpu_is_named(devices, tmp_path):
    assert_a_killed_worker_is_named(devices, tmp_path, "--config.communication.implementation=ring")


def assert_a_killed_worker_is_named(devices, tmp_path, *more):
    options = ("--config.train.epochs=none", "--config.train.steps=1000000", "--config.report.every.steps=5", *more)
    command = devices.command(tmp_path, *options, "--config.evaluation.every.epochs=none", config=DIGITS)
    metrics = tmp_path / "metrics.jsonl"
    with devices.started([command] * 2, devices.environments(2)) as running:
        processes.until(
            lambda: (metrics.exists() and metrics.read_text().count('"kind": "train"') > 3) or running[0].poll(),
            accelerators.SECONDS,
        )
        assert running[0].poll() is None, running[0].communicate()[0].decode()
        running[1].send_signal(signal.SIGKILL)
        start = time.monotonic()
        output = running[0].communicate(timeout=PATIENCE + 60)[0].decode()
        seconds = time.monotonic() - start
    assert running[0].returncode == interruption.EXIT_PEER_LOST, output
    assert re.search(r"tfdist: worker 0: worker 1 \(host \S+, pid \d+\) is lost: ", output), output
    assert seconds < PATIENCE, f"{seconds} s\n{output}"


@pytest.mark.unit
def test_copies_in_a_profile_are_counted():
    space = xplane_pb2.XSpace()
    for plane_name, line_name in (("/device:GPU:0", "Stream #13"), ("/device:GPU:0", "Steps"), ("/host:CPU", "Stream")):
        plane = space.planes.add(name=plane_name)
        for number, name in enumerate(("MemcpyD2H", "MemcpyH2D", "sgemm")):
            plane.event_metadata[number].id = number
            plane.event_metadata[number].name = name
        line = plane.lines.add(name=line_name)
        for number in (0, 1, 1, 2):
            line.events.add(metadata_id=number)
        plane.stat_metadata[7].name = "tf_op"
        line.events.add(metadata_id=0).stats.add(metadata_id=7, str_value="RemoteCall____next_func_250:RemoteCall")
    assert accelerators.copies(space) == {"MemcpyD2H": 1, "MemcpyH2D": 2, "iterator": 1}


@pytest.mark.slow
def test_these_tests_run_on_the_cpu():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    env = worker_environment() | {"TFDIST_TESTS_GPU_ON": "cpu"}
    (code,), (output,) = processes.run([command], [env], timeout=3600.0, cwd=REPOSITORY)
    assert code == 0 and re.search(r"\d+ passed", output) and "skipped" not in output, output
