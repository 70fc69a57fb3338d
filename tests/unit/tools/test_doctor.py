"""The doctor: what it finds on real workers, and its verdict on each fact."""

import re
import sys

import forked
import pytest
from launching import REPOSITORY, run_all, worker_environment
from topologies import environments

from tfdist.tools.doctor import checks


def command(*options):
    """The command line of the doctor."""
    return [sys.executable, "-m", "tfdist", "doctor", "--config=configs/digits.py", *options]


@pytest.mark.workers
def test_doctor_checks_two_workers_and_finds_no_problem(tmp_path):
    options = [
        f"--workdir={tmp_path / 'run'}",
        "--seconds=0.2",
        "--job_minutes=9000",
        "--config.cluster.connect_seconds=240",
    ]
    chief, other = run_all([command(*options)] * 2, environments(2))
    lines = {line[:12].strip(): line for line in chief.splitlines()}
    words = {
        "config": "types, ranges and names",
        "workers": "2 by tf_config: rank 0 on ",
        "ports": "all workers can connect to rank 0",
        "workdir": "is writable and shared by all workers",
        "versions": "keras 3",
        "host names": "2 worker(s) can resolve all names",
        "GPUs": "none",
        "batch": "64 examples / 2 replica(s): 32 per replica",
        "clocks": "",
        "data": "a step's 32 take",
        "memory": "weights, slots and gradients take",
        "disk": "MiB free",
        "all-reduce": "Gbit/s",
        "time": "660 steps of",
    }
    for check, finding in words.items():
        assert re.search(rf"^{check} +(ok|look) +.*{re.escape(finding)}", lines.get(check, "")), check + chief
    assert chief.rstrip().endswith("No problems found.") and "finding" not in other
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.workers
def test_doctor_names_a_bad_config_value(tmp_path):
    bad = command(f"--workdir={tmp_path}", "--config.model.num_classes=12")
    done = forked.run(bad, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = done.stdout
    assert re.search(r"^data and model +BAD +config.model.num_classes=12, but the split 'train'", found, re.MULTILINE)
    assert found.rstrip().endswith("BAD: 1 of 9 findings.")
    (tmp_path / "file").touch()
    bad = command(f"--workdir={tmp_path}/file")
    done = forked.run(bad, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    found = re.search(r"^workdir +BAD +The workdir '.*/file' is a file, and not a directory", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and found, done.stdout


@pytest.mark.slow
def test_doctor_reports_a_failing_step(tmp_path):
    bad = command(f"--workdir={tmp_path}", "--config.objective={'target': 'tests.support.lab:changing'}")
    done = forked.run(bad, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = re.search(r"^step +BAD +.*", done.stdout, re.MULTILINE)
    assert found and "must return the same values in training and evaluation" in found[0], done.stdout + done.stderr


def worker(**facts):
    """What a healthy worker says of itself."""
    gpus = {"gpus": 4, "gpus_visible": 4, "gpus_on_node": 4, "local_size": 1, "gpu_problem": ""}
    return {"versions": {"tensorflow": "2.21.0"}, "unresolved": [], "gpu_software": software()} | gpus | facts


def software(name="NVIDIA A100", capability="8.0", code="binary", **facts):
    """What a worker says of its GPUs and the libraries that use them."""
    versions = {"driver": "550.54.15", "cuda": "12.5.1", "cudnn": "9.3.0", "nccl": "2.27.7", "tf32": True}
    gpu = {"name": name, "compute_capability": capability, "code": code}
    return {"gpus": [gpu] * 4, "built_for": ["sm_80", "compute_90"]} | versions | facts


@pytest.mark.parametrize(
    "found, verdict, words",
    [
        (checks.versions([worker(), worker()])[0], "ok", "tensorflow 2.21.0"),
        (checks.versions([worker(), worker(versions={"tensorflow": "2.20"})])[0], "BAD", "2.20 on rank 1"),
        (checks.host_names([worker(), worker(unresolved=["n9"])]), "BAD", "rank 1 cannot resolve n9"),
        (
            checks.host_names([worker(unresolved=["n9"])] * 9),
            "BAD",
            "rank 0, 1, 2, 3, 4, 5 and 3 more cannot resolve n9",
        ),
        (checks.gpus([worker(), worker()])[0], "ok", "4 per worker"),
        (
            checks.gpus([worker(), worker(gpus=0, gpu_problem="This host has 4 GPU(s), but")])[0],
            "BAD",
            "rank 1: This host has 4 GPU(s), but",
        ),
        (
            checks.gpus([worker(), worker()])[1],
            "ok",
            "NVIDIA A100 (compute capability 8.0, fast in bfloat16 and float16); driver 550.54.15, CUDA 12.5.1, "
            "cuDNN 9.3.0, NCCL 2.27.7; TF32 on",
        ),
        (
            checks.gpus([worker(), worker(gpu_software=software(driver="535.1", tf32=False))])[1],
            "look",
            "rank 1: NVIDIA A100 (compute capability 8.0, fast in bfloat16 and float16); driver 535.1, CUDA 12.5.1, "
            "cuDNN 9.3.0, NCCL 2.27.7; TF32",
        ),
        (checks.gpus([worker(gpu_software=software("Tesla V100", "7.0"))])[1], "ok", "7.0, fast in float16);"),
        (checks.gpus([worker(gpu_software=software("Tesla P100", "6.0"))])[1], "ok", "(compute capability 6.0);"),
        (
            checks.gpus([worker(gpu_software=software("NVIDIA H200", "9.0", "PTX"))])[2],
            "look",
            "rank 0: TensorFlow has only PTX for NVIDIA H200",
        ),
        (
            checks.gpus([worker(gpu_software=software("Tesla K80", "3.7", ""))])[2],
            "BAD",
            "rank 0: TensorFlow has no code for Tesla K80, only for sm_80, compute_90",
        ),
        (
            checks.gpus([worker(gpus=1, gpus_visible=1, local_size=4)] * 2)[1],
            "look",
            "rank 0, 1: sees 1 of the 4 GPUs of its node",
        ),
        (checks.gpus([worker(), worker(gpus=3)])[0], "BAD", "between 3 and 4 per worker"),
        (checks.gpus([worker(gpus=0)])[0], "look", "run on CPUs"),
        (checks.clocks([10.0, 10.2, 10.1]), "ok", "differ by up to 0.20 s"),
        (checks.clocks([10.0, 70.0, 10.1]), "look", "differ by up to 60.0 s (rank 1 is off)"),
        (
            checks.data([1000.0, 400.0], 100),
            "look",
            "400 examples/s on the slowest worker (rank 1), 1,000 on the",
        ),
        (checks.data([1000.0, 900.0], 90), "ok", "a step's 90 take 100.0 ms"),
        (checks.memory(3 << 30, 1 << 30, 2 << 30), "BAD", "4,096 MiB of 2,048 MiB"),
        (checks.memory(3 << 20, 1 << 20, 7 << 20), "look", "4 MiB of 7 MiB"),
        (checks.memory(3 << 20, 1 << 20, 2 << 30), "ok", "4 MiB of 2,048 MiB"),
        (checks.disk(REPOSITORY, 1 << 60, 3), "BAD", "3 checkpoints and the best take"),
        (checks.disk(REPOSITORY, 1 << 10, 3), "ok", "MiB free"),
        (checks.communication(0.1, 1 << 20, 2, 0.05), "look", "1 MiB of gradients over 2 replicas: 100 ms"),
        (checks.communication(0.01, 1 << 20, 2, 0.05), "ok", "0.839 Gbit/s; the rest of a step 50 ms"),
        (checks.communication(0.0, 0, 1, 0.05), "ok", "no communication"),
        # 36,000 steps and evaluations as long as 3,600 steps; 600 s of each job are its start.
        (checks.duration(0.1, 36_000, 10_800, 600, None), "ok", "36,000 steps of 100 ms: about 1:06:00 for the run"),
        (
            checks.duration(0.1, 36_000, 10_800, 600, 7200.0),
            "ok",
            "and 0:10:00 for each start: within one job of 2:00:00",
        ),
        (checks.duration(0.1, 36_000, 10_800, 600, 1800.0), "look", "4 jobs of 0:30:00"),
        (checks.duration(0.1, 36_000, 10_800, 600, 600.0), "look", "36,000 steps"),
    ],
)
def test_findings(found, verdict, words):
    assert found.verdict == verdict and words in found.finding
    assert bool(found.advice) == (verdict != "ok" and "This host has" not in found.finding)


def test_unresolved_lists_unknown_hosts():
    assert checks.unresolved(["localhost", "no-such-host.invalid"]) == ["no-such-host.invalid"]
