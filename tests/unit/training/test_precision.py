"""train.precision="auto": what is chosen for which device, and that a resume keeps it."""

import json

import clusters
import keras
import pytest

from tfdist import config as c
from tfdist.cluster.devices import precision
from tfdist.cluster.devices.precision import Device
from tfdist.config import schema, specs
from tfdist.configs import line
from tfdist.training import loop, setup


def gpu(major, minor):
    return Device(type="GPU", compute_capability=(major, minor))


AMX = Device(type="CPU", cpu_flags=frozenset({"avx512f", "avx512_bf16", "amx_bf16"}))
VECTORS = Device(type="CPU", cpu_flags=frozenset({"avx512f", "avx512_bf16"}))
PLAIN = Device(type="CPU", cpu_flags=frozenset({"avx2", "fma"}))


@pytest.mark.parametrize(
    ("device", "ratio", "expected"),
    [
        pytest.param(gpu(6, 0), None, "float32", id="P100"),
        pytest.param(gpu(7, 0), None, "float16", id="V100"),
        pytest.param(gpu(7, 5), None, "float16", id="T4"),
        pytest.param(gpu(8, 0), None, "bfloat16", id="A100"),
        pytest.param(gpu(9, 0), None, "bfloat16", id="H100"),
        pytest.param(Device(type="GPU"), None, "float32", id="unknown GPU"),
        pytest.param(AMX, None, "bfloat16", id="AMX"),
        pytest.param(VECTORS, 0.54, "bfloat16", id="fast vectors"),
        pytest.param(VECTORS, 0.9, "float32", id="slow vectors"),
        pytest.param(PLAIN, 7.0, "float32", id="no bfloat16"),
        pytest.param(PLAIN, None, "float32", id="not measured"),
    ],
)
def test_the_choice_for_a_device(device, ratio, expected):
    assert precision.choose(device, bfloat16_ratio=ratio) == expected


def test_without_loss_scaling_float16_is_not_chosen():
    assert precision.choose(gpu(7, 0), float16_allowed=False) == "float32"


@pytest.mark.parametrize(
    ("name", "device", "ratio", "expected"),
    [
        ("float32", PLAIN, 7.0, False),
        ("bfloat16", PLAIN, 7.0, True),
        ("bfloat16", VECTORS, 0.5, False),
        ("bfloat16", AMX, None, False),
        ("bfloat16", gpu(7, 0), None, True),
        ("bfloat16", gpu(8, 0), None, False),
        ("float16", AMX, None, True),
        ("float16", gpu(7, 0), None, False),
    ],
)
def test_which_precision_is_slow(name, device, ratio, expected):
    assert precision.is_slow(name, device, ratio) == expected


def test_unlike_devices_are_rejected_with_both_names():
    precision.check_equal_kinds([gpu(8, 0).code] * 3)
    with pytest.raises(
        ValueError,
        match=r"worker 0 has a GPU of compute capability 8\.0, worker 2 has a GPU of compute capability 7\.0\. Set",
    ):
        precision.check_equal_kinds([gpu(8, 0).code, gpu(8, 0).code, gpu(7, 0).code])
    with pytest.raises(ValueError, match=r"worker 0 has a CPU with AMX, worker 1 has a CPU without bfloat16 instr"):
        precision.check_equal_kinds([AMX.code, PLAIN.code])


@pytest.fixture(scope="module")
def cluster():
    return clusters.of_devices("/CPU:0")


def resolved(cluster, saved, monkeypatch, device, ratio, **train):
    monkeypatch.setattr(precision, "find_device", lambda cluster: device)
    monkeypatch.setattr(precision, "measure_bfloat16", lambda: ratio)
    config = c.Config(model={}, train=c.Train(steps=1, precision="auto", **train))
    found, lines = precision.resolve(config, saved, cluster)
    assert config.train.precision == "auto"
    return found.train.precision, " ".join(lines)


def test_a_new_run_takes_the_choice_and_an_old_one_keeps_its_own(cluster, monkeypatch):
    new = resolved(cluster, None, monkeypatch, gpu(8, 0), None)
    assert new == ("bfloat16", "precision bfloat16: chosen for a GPU of compute capability 8.0")
    old, lines = resolved(cluster, "bfloat16", monkeypatch, PLAIN, 7.0)
    assert old == "bfloat16" and "as saved in the workdir" in lines
    assert "bfloat16 is slower than float32 on a CPU without bfloat16 instructions" in lines
    old, lines = resolved(cluster, "float32", monkeypatch, AMX, None)
    assert (old, lines) == ("float32", "precision float32: as saved in the workdir")


def test_local_steps_get_no_loss_scaling(cluster, monkeypatch):
    assert resolved(cluster, None, monkeypatch, gpu(7, 0), None, local_steps=2)[0] == "float32"


def test_the_parts_that_fields_name_are_functions():
    assert specs.part("train.precision") is precision.resolve
    assert all(specs.part(field).__module__ in schema.PARTS[field] for field in schema.PARTS)


def test_this_machine_is_measured(cluster, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu avx2 amx_bf16\n")
    assert precision.find_device(cluster, cpuinfo).code == AMX.code
    assert precision.find_device(cluster, tmp_path / "missing").code == PLAIN.code
    assert 0.01 < precision.measure_bfloat16() < 1000


@pytest.mark.slow
@pytest.mark.workers
def test_a_run_saves_the_chosen_precision_and_a_run_of_an_older_release_resumes(own_signals, cluster, tmp_path):
    config = line.get_config()
    config.train = c.Train(steps=2, precision="float32")
    keras.utils.clear_session()  # The names of variables are counted in a process.
    assert loop.train(setup.build_run(config, tmp_path, cluster)) == 0
    keras.utils.clear_session()
    # Since then the shipped config has been changed to "auto", and the run is longer.
    config.train = c.Train(steps=4, precision="auto")
    run = setup.build_run(config, tmp_path, cluster)
    assert run.config.train.precision == "float32" and "as saved in the workdir" in run.log.notes[0]
    assert loop.train(run, allow_config_changes=True) == 0
    assert json.loads((tmp_path / "config.json").read_text())["train"]["precision"] == "float32"
