"""Which GPUs a worker uses, and what it says if TensorFlow finds none; a module replaces that of the driver."""

import json
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment

from tfdist import config
from tfdist.cluster import strategy
from tfdist.cluster.devices import gpu_software, host_gpus
from tfdist.cluster.discovery import gpus as gpus_lib
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.several_workers import multi_worker

# Two GPUs, of which the second has two MIG slices and no memory of its own; what of them fails is in FAILS.
NVML = """
import os, types
NVMLError = type("NVMLError", (Exception,), {})
NVMLError_NotFound = type("NVMLError_NotFound", (NVMLError,), {})
slices = {1: ["MIG-cc", "MIG-dd"]}

def refuse(if_so, error=NVMLError):
    if if_so:
        raise error

def nvmlDeviceGetMemoryInfo(gpu):
    refuse(gpu)
    return types.SimpleNamespace(total=2**30)

def nvmlDeviceGetMaxMigDeviceCount(gpu):
    refuse(gpu == 0)
    return 7

def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
    refuse(index >= len(slices[gpu]), NVMLError_NotFound)
    return slices[gpu][index]

nvmlInit = lambda: refuse("init" in os.environ["FAILS"])
nvmlDeviceGetCount = lambda: int(os.environ["GPUS"])
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = lambda gpu: "NVIDIA A100"
nvmlDeviceGetUUID = lambda gpu: gpu if isinstance(gpu, str) else f"GPU-{gpu}"
nvmlSystemGetDriverVersion = lambda: "550.54.15"
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


def test_the_gpus_of_the_host(nvml):
    nvml()
    first, second = host_gpus.query()
    assert first == host_gpus.HostGpu(name="NVIDIA A100", uuids=("GPU-0",), memory_mib=1024)
    assert second == host_gpus.HostGpu(name="NVIDIA A100", uuids=("MIG-cc", "MIG-dd"), memory_mib=0)
    assert host_gpus.assigned_gpus({}) == ("GPU-0", "MIG-cc", "MIG-dd")
    assert host_gpus.driver_version() == "550.54.15"


def test_gpus_that_tensorflow_does_not_list_stop_the_training(nvml):
    nvml()
    with pytest.raises(gpu_software.GpusNotFoundError, match=r"2 GPU\(s\), according to NVML(?s:.*)gpus=0"):
        strategy.plan(config.ClusterOptions(), env={})
    assert strategy.plan(config.ClusterOptions(gpus=0), env={}).gpus == ()
    assert strategy.plan(config.ClusterOptions(), env={"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert strategy.plan(config.ClusterOptions(gpus=0, logical_devices=2), env={}).local_replicas == 2


def test_where_nvml_fails_the_drivers_files_count(nvml, tmp_path):
    nvml(fails="init")
    proc = tmp_path / "proc"
    for name in ("0000:07:00.0", "0000:0f:00.0"):
        (proc / "driver" / "nvidia" / "gpus" / name).mkdir(parents=True)
    with pytest.raises(gpu_software.GpusNotFoundError, match=r"2 GPU\(s\), according to .*/driver/nvidia/gpus.*--nv"):
        gpu_software.num_listed({}, proc)
    gpu_software.num_listed({"CUDA_VISIBLE_DEVICES": "-1"}, proc)
    gpu_software.num_listed({}, proc / "nothing")
    # A job that has requested no GPU, on a node that has some.
    gpu_software.num_listed({"SLURM_JOB_ID": "7"}, proc)
    with pytest.raises(gpu_software.GpusNotFoundError):
        gpu_software.num_listed({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}, proc)


@pytest.mark.parametrize(
    ("capability", "kind"), [((7, 5), "binary"), ((8, 6), "binary"), ((9, 0), "binary"), ((10, 0), "PTX"), ((5, 2), "")]
)
def test_code_for_an_architecture(capability, kind):
    assert gpu_software.generated_code(capability, BUILT) == kind


def test_facts_and_notes():
    build = {"cuda_compute_capabilities": BUILT, "cuda_version": "12.5.1", "cudnn_version": "9"}
    details = [{"device_name": "NVIDIA B200", "compute_capability": (10, 0)}] * 2
    found = gpu_software.facts(details, build, {"NCCL_DEBUG": "INFO", "HOME": "/h"})
    assert json.loads(json.dumps(found)) == found
    assert found["gpus"] == [{"name": "NVIDIA B200", "compute_capability": "10.0", "code": "PTX"}] * 2
    assert found["variables"] == {"NCCL_DEBUG": "INFO"} and found["built_for"] == BUILT
    assert found["tf32"] and not gpu_software.facts(details, build, {"NVIDIA_TF32_OVERRIDE": "0"})["tf32"]
    (note,) = gpu_software.notes(found)
    assert "no machine code for NVIDIA B200" in note and "CUDA_CACHE_PATH" in note
    # The driver compiles kernels in the first all-reduce: 120 s may not be enough.
    assert [multi_worker.first_seconds(120.0, one) for one in (found, {})] == [600.0, 120.0]
    old = gpu_software.facts([{"device_name": "Tesla K80", "compute_capability": (3, 7)}], build, {})
    assert "no code for Tesla K80" in gpu_software.notes(old)[0]
    assert gpu_software.notes(gpu_software.facts([{}], build, {})) == gpu_software.notes({}) == []


@pytest.mark.parametrize(
    ("num_listed", "sharers", "wanted", "chosen"),
    [
        (4, 1, None, (0, 1, 2, 3)),
        (4, 1, 2, (0, 1)),
        (4, 1, [0, 2], (0, 2)),
        (4, 2, [1], (3,)),
        (4, 2, 0, ()),
        (2, 1, 3, "gpus=3, but this worker has 2"),
        (4, 2, [0, 2], r"gpus=\[0, 2\], but this worker has 2"),
        (0, 1, 1, "gpus=1, but this worker has 0"),
    ],
)
def test_the_gpus_of_the_config(num_listed, sharers, wanted, chosen):
    spec = WorkerSpec(launcher="slurm", local_rank=1, gpu_sharers=sharers)
    if isinstance(chosen, tuple):
        assert gpus_lib.choose_gpus(spec, num_listed, wanted) == chosen
    else:
        with pytest.raises(ValueError, match=chosen):
            gpus_lib.choose_gpus(spec, num_listed, wanted)


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
    with pytest.raises(ValueError, match='implementation="nccl" needs GPUs'):
        strategy.plan(config.ClusterOptions(), env, communication=config.Communication(implementation="nccl"))


def test_bfloat16_is_not_sent_with_nccl(monkeypatch):
    monkeypatch.setattr(gpu_software, "num_listed", lambda env: 2)

    def implementation(gpus=None, **communication):
        options = config.ClusterOptions(gpus=gpus)
        return strategy.plan(options, {}, communication=config.Communication(**communication)).implementation

    with pytest.raises(ValueError, match=r'dtype="bfloat16"(?s:.*)NCCL'):
        implementation(dtype="bfloat16")
    assert implementation(dtype="float16") == implementation(dtype="bfloat16", gpus=1) == "nccl"
    assert implementation(dtype="bfloat16", implementation="ring") == "ring"


@pytest.mark.workers
def test_the_command_says_why_it_does_not_train(nvml, tmp_path):
    env = {name: value for name, value in worker_environment().items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"PYTHONPATH": f"{nvml()}:{env.get('PYTHONPATH', '')}", "GPUS": "2", "FAILS": ""}
    words = ["--config=configs/digits.py", f"--workdir={tmp_path / 'run'}"]
    for command in (["-m", "tfdist.main"], ["-m", "tfdist", "doctor"]):
        line = [sys.executable, *command, *words]
        done = forked.run(line, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and "Traceback" not in said, said
        assert "This host has 2 GPU(s), according to NVML" in said and "--config.cluster.gpus=0" in said
