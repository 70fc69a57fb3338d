"""Which GPUs a worker uses, and what it says if TensorFlow finds none; a module replaces that of the driver."""

import importlib.metadata
import json
import re
import sys

import forked
import pytest
import tensorflow as tf
from launching import REPOSITORY, worker_environment

from tfdist import config
from tfdist.cluster import strategy
from tfdist.cluster.devices import gpu_software, host_gpus, machine, unused_gpus
from tfdist.cluster.discovery import gpus as gpus_lib

# Two GPUs, of which the second has two MIG slices and no memory of its own; what of them fails is in FAILS.
NVML = """
import os, types

class NVMLError(Exception):
    pass

class NVMLError_NotFound(NVMLError):
    pass

fails, count, slices = os.environ["FAILS"].split(), int(os.environ["GPUS"]), {1: ["MIG-cc", "MIG-dd"]}

def nvmlInit():
    if "init" in fails:
        raise NVMLError("Driver/library version mismatch")

def nvmlDeviceGetCount():
    return count

def nvmlDeviceGetHandleByIndex(index):
    return index

def nvmlDeviceGetName(gpu):
    return "NVIDIA A100"

def nvmlDeviceGetUUID(gpu):
    return gpu if isinstance(gpu, str) else f"GPU-{gpu}"

def nvmlDeviceGetMemoryInfo(gpu):
    if gpu:
        raise NVMLError("Not Supported")
    return types.SimpleNamespace(total=2**30)

def nvmlDeviceGetMaxMigDeviceCount(gpu):
    if gpu == 0:
        raise NVMLError("Not Supported")
    return 7

def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
    if index >= len(slices[gpu]):
        raise NVMLError_NotFound
    return slices[gpu][index]

def nvmlSystemGetDriverVersion():
    return "550.54.15"
"""
BUILT = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """Replaces the module of the driver's library: (number of GPUs, what fails) -> the folder with it."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    (folder / "pynvml.py").write_text(NVML)

    def make(count=2, fails=""):
        monkeypatch.setenv("GPUS", str(count))
        monkeypatch.setenv("FAILS", fails)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        return folder

    yield make
    sys.modules.pop("pynvml", None)


@pytest.fixture
def proc(tmp_path):
    """A /proc with the driver's files for two GPUs."""
    for name in ("0000:07:00.0", "0000:0f:00.0"):
        (tmp_path / "driver" / "nvidia" / "gpus" / name).mkdir(parents=True)
    return tmp_path


def test_the_gpus_of_the_host(nvml):
    nvml()
    first, second = host_gpus.query()
    assert first == host_gpus.HostGpu(name="NVIDIA A100", uuids=("GPU-0",), memory_mib=1024)
    assert second == host_gpus.HostGpu(name="NVIDIA A100", uuids=("MIG-cc", "MIG-dd"), memory_mib=0)
    assert host_gpus.assigned_gpus({}) == ("GPU-0", "MIG-cc", "MIG-dd")
    assert host_gpus.driver_version() == "550.54.15"


def test_this_machine_may_have_no_driver():
    assert len(host_gpus.assigned_gpus({})) >= len(host_gpus.query())
    assert bool(host_gpus.query()) <= bool(host_gpus.driver_version())


def test_gpus_that_tensorflow_does_not_list_stop_the_training(nvml):
    nvml()
    with pytest.raises(gpu_software.GpusNotFoundError) as error:
        strategy.plan(config.ClusterOptions(), env={})
    said = str(error.value)
    assert said.startswith(f"This host has 2 GPU(s), according to NVML, but TensorFlow {tf.__version__} lists none")
    assert "pip install 'tensorflow[and-cuda]" in said
    assert said.endswith("To train on the CPU, set --config.cluster.gpus=0.")
    assert strategy.plan(config.ClusterOptions(gpus=0), env={}).gpus == ()
    assert strategy.plan(config.ClusterOptions(), env={"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert strategy.plan(config.ClusterOptions(gpus=0, logical_devices=2), env={}).local_replicas == 2


def test_a_host_without_gpus_trains_on_its_cpu(nvml, proc):
    nvml(0)
    gpu_software.check_found({}, proc)
    assert host_gpus.query() == ()


def test_where_nvml_fails_the_drivers_files_count(nvml, proc):
    nvml(fails="init")
    with pytest.raises(gpu_software.GpusNotFoundError, match=r"2 GPU\(s\), according to .*/driver/nvidia/gpus.*--nv"):
        gpu_software.check_found({}, proc)
    gpu_software.check_found({"CUDA_VISIBLE_DEVICES": "-1"}, proc)
    gpu_software.check_found({}, proc / "nothing")
    # A job that has requested no GPU, on a node that has some.
    gpu_software.check_found({"SLURM_JOB_ID": "7"}, proc)
    with pytest.raises(gpu_software.GpusNotFoundError):
        gpu_software.check_found({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}, proc)


def test_the_reason_is_that_of_the_installation():
    build = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
    here = machine.Machine(architecture="x86_64")
    assert "was built without CUDA. Install" in unused_gpus.why_unused({"is_cuda_build": False}, [], "", here)
    lacking = unused_gpus.why_unused(build, ["nvidia-cudnn-cu12", "nvidia-nccl-cu12"], "550.54.15", here)
    assert lacking.startswith("CUDA's libraries are missing (nvidia-cudnn-cu12, nvidia-nccl-cu12). Run: ")
    assert "modules of CUDA 12.5.1 and cuDNN 9" in lacking
    complete = unused_gpus.why_unused(build, [], "450.80.02", here)
    assert "driver (450.80.02) is too old for CUDA 12.5.1" in complete and "TF_CPP_MIN_LOG_LEVEL=0" in complete


def test_missing_libraries_are_those_that_the_wheel_names():
    required = [line for line in importlib.metadata.requires("tensorflow") if "and-cuda" in line]
    missing = unused_gpus.missing_libraries()
    assert set(missing) <= {re.split("[<>=;]", line)[0].strip() for line in required}
    for name in missing:
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        *(((6, 0), "binary"), ((7, 5), "binary"), ((8, 0), "binary"), ((8, 6), "binary"), ((8, 9), "binary")),
        *(((9, 0), "binary"), ((10, 0), "PTX"), ((12, 0), "PTX"), ((5, 2), "")),
    ],
)
def test_code_for_an_architecture(capability, kind):
    assert gpu_software.generated_code(capability, BUILT) == kind


def test_facts_and_notes():
    build = {"cuda_compute_capabilities": BUILT, "cuda_version": "12.5.1", "cudnn_version": "9"}
    details = [{"device_name": "NVIDIA B200", "compute_capability": (10, 0)}] * 2
    env = {"NCCL_DEBUG": "INFO", "TF_DETERMINISTIC_OPS": "1", "HOME": "/h"}
    found = gpu_software.facts(details, build, env)
    assert json.loads(json.dumps(found)) == found
    assert found["gpus"] == [{"name": "NVIDIA B200", "compute_capability": "10.0", "code": "PTX"}] * 2
    assert found["variables"] == {"NCCL_DEBUG": "INFO", "TF_DETERMINISTIC_OPS": "1"}
    assert found["cudnn"].startswith("9") and found["built_for"] == BUILT
    assert found["tf32"] and not gpu_software.facts(details, build, {"NVIDIA_TF32_OVERRIDE": "0"})["tf32"]
    (note,) = gpu_software.notes(found)
    assert "no machine code for NVIDIA B200" in note and "CUDA_CACHE_PATH" in note
    old = gpu_software.facts([{"device_name": "Tesla K80", "compute_capability": (3, 7)}], build, {})
    assert gpu_software.notes(old) == [
        "TensorFlow has no code for Tesla K80, only for sm_60, sm_70, sm_80, sm_89, compute_90: use another build"
    ]
    assert gpu_software.notes(gpu_software.facts([{}], build, {})) == gpu_software.notes({}) == []
    assert gpu_software.describe({}) == {}


@pytest.mark.parametrize(
    ("assigned", "wanted", "chosen"),
    [
        ((0, 1, 2, 3), None, (0, 1, 2, 3)),
        ((0, 1, 2, 3), 2, (0, 1)),
        ((0, 1, 2, 3), [0, 2], (0, 2)),
        ((2, 3), [1], (3,)),
        ((2, 3), 0, ()),
        ((), None, ()),
    ],
)
def test_the_gpus_of_the_config(assigned, wanted, chosen):
    assert gpus_lib.select_gpus(assigned, wanted) == chosen


@pytest.mark.parametrize(
    ("assigned", "wanted", "message"),
    [
        ((0, 1), 3, r"config\.cluster\.gpus=3, but this worker has 2 GPU\(s\): choose from 0 to 1, or at most 2; 0 "),
        ((0, 1), [0, 2], r"config\.cluster\.gpus=\[0, 2\], but this worker has 2 GPU\(s\)"),
        ((), 1, r"config\.cluster\.gpus=1, but this worker has 0 GPU\(s\): 0 trains on the CPU"),
    ],
)
def test_gpus_that_a_worker_does_not_have(assigned, wanted, message):
    with pytest.raises(ValueError, match=message):
        gpus_lib.select_gpus(assigned, wanted)


def test_the_implementation_follows_the_devices():
    env = {"CUDA_VISIBLE_DEVICES": ""}
    workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    two = env | {"TF_CONFIG": json.dumps(workers)}

    def implementation(wanted, env, **options):
        communication = config.Communication(implementation=wanted)
        return strategy.plan(config.ClusterOptions(**options), env, communication=communication).implementation

    for wanted in ("auto", "tcp"):
        assert implementation(wanted, two) == "tcp"
        assert implementation(wanted, env) == implementation(wanted, two, logical_devices=2) == "ring"
    assert implementation("ring", two) == "ring"
    with pytest.raises(ValueError, match=r'implementation="nccl" needs GPUs, but .* on the CPU: set it to "auto" or'):
        strategy.plan(config.ClusterOptions(), env, communication=config.Communication(implementation="nccl"))


def test_bfloat16_is_not_sent_with_nccl(monkeypatch):
    monkeypatch.setattr(gpu_software, "num_listed", lambda env: 2)

    def implementation(gpus=None, **communication):
        options = config.ClusterOptions(gpus=gpus)
        return strategy.plan(options, {}, communication=config.Communication(**communication)).implementation

    with pytest.raises(ValueError, match=r'communication\.dtype="bfloat16": .* with NCCL\. Set it to "float16", which'):
        implementation(dtype="bfloat16")
    assert implementation(dtype="float16") == implementation(dtype="bfloat16", gpus=1) == "nccl"
    assert implementation(dtype="bfloat16", implementation="ring") == "ring"


@pytest.mark.workers
def test_the_command_says_why_it_does_not_train(nvml, tmp_path):
    folder = nvml()
    env = {name: value for name, value in worker_environment().items() if name != "CUDA_VISIBLE_DEVICES"}
    words = ["--config=configs/digits.py", f"--workdir={tmp_path / 'run'}"]
    keywords = {
        "cwd": REPOSITORY,
        "env": env | {"PYTHONPATH": f"{folder}:{env.get('PYTHONPATH', '')}", "GPUS": "2", "FAILS": ""},
        "capture_output": True,
        "text": True,
    }
    done = forked.run([sys.executable, "-m", "tfdist.main", *words], timeout=300, **keywords)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "This host has 2 GPU(s), according to NVML" in done.stderr
    done = forked.run([sys.executable, "-m", "tfdist", "doctor", *words], timeout=300, **keywords)
    assert done.returncode == 1, done.stderr
    assert re.search(r"BAD .*This host has 2 GPU\(s\)", done.stdout) and "--config.cluster.gpus=0" in done.stdout
