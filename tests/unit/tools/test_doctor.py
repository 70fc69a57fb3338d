"""The doctor: what it finds on real workers, and its verdict on each fact."""

import re
import sys

import forked
import pytest
from launching import REPOSITORY, run_all, worker_environment
from topologies import environments

from tfdist.tools import doctor_checks


def command(*options):
    """The command line of the doctor."""
    return [sys.executable, "-m", "tfdist", "doctor", "--config=configs/digits.py", *options]


@pytest.mark.workers
def test_the_doctor_looks_at_two_workers_and_finds_nothing(tmp_path):
    options = [f"--workdir={tmp_path / 'run'}", "--seconds=0.2", "--config.cluster.connect_seconds=240"]
    chief, other = run_all([command(*options)] * 2, environments(2))
    lines = {line[:12].strip(): line for line in chief.splitlines()}
    words = {
        "config": "types, ranges and names",
        "workers": "2 by tf_config: rank 0 on ",
        "ports": "all workers can connect to each other",
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
    }
    for check, finding in words.items():
        assert re.search(rf"^{check} +(ok|look) +.*{re.escape(finding)}", lines.get(check, "")), check + chief
    assert chief.rstrip().endswith("No problems found.") and "finding" not in other
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.workers
def test_the_doctor_says_what_is_bad_and_what_to_do(tmp_path):
    bad = command(f"--workdir={tmp_path}", "--config.model.num_classes=12")
    done = forked.run(bad, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = done.stdout
    assert re.search(r"^data and model +BAD +config.model.num_classes=12, but the split 'train'", found, re.MULTILINE)
    assert found.rstrip().endswith("BAD: 1 of 9 findings.")


@pytest.mark.workers
def test_a_step_that_fails_is_a_finding(tmp_path):
    bad = command(f"--workdir={tmp_path}", "--config.model.group_size=48")
    done = forked.run(bad, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    found = re.search(r"^step +BAD +.*", done.stdout, re.MULTILINE)
    assert found and "group_size=48" in found[0] and "must divide" in found[0], done.stdout + done.stderr


def worker(**facts):
    """What a healthy worker says of itself."""
    return {"versions": {"tensorflow": "2.21.0"}, "unresolved": [], "gpus": 4, "on_host": 4} | facts


@pytest.mark.parametrize(
    "found, verdict, words",
    [
        (doctor_checks.versions([worker(), worker()])[0], "ok", "tensorflow 2.21.0"),
        (doctor_checks.versions([worker(), worker(versions={"tensorflow": "2.20"})])[0], "BAD", "2.20 on rank 1"),
        (doctor_checks.host_names([worker(), worker(unresolved=["n9"])]), "BAD", "rank 1 cannot resolve n9"),
        (
            doctor_checks.host_names([worker(unresolved=["n9"])] * 9),
            "BAD",
            "rank 0, 1, 2, 3, 4, 5 and 3 more cannot resolve n9",
        ),
        (doctor_checks.gpus([worker(), worker()])[0], "ok", "4 per worker"),
        (
            doctor_checks.gpus([worker(), worker(gpus=0)])[0],
            "BAD",
            "rank 1: the host has 4 GPU(s), but TensorFlow lists none",
        ),
        (doctor_checks.gpus([worker(), worker(gpus=3)])[0], "BAD", "between 3 and 4 per worker"),
        (doctor_checks.gpus([worker(gpus=0, on_host=0)])[0], "look", "run on CPUs"),
        (doctor_checks.clocks([10.0, 10.2, 10.1]), "ok", "differ by up to 0.20 s"),
        (doctor_checks.clocks([10.0, 70.0, 10.1]), "look", "differ by up to 60.0 s (rank 1 is off)"),
        (
            doctor_checks.data([1000.0, 400.0], 100),
            "look",
            "400 examples/s on the slowest worker (rank 1), 1,000 on the",
        ),
        (doctor_checks.data([1000.0, 900.0], 90), "ok", "a step's 90 take 100.0 ms"),
        (doctor_checks.memory(3 << 30, 1 << 30, 2 << 30), "BAD", "4,096 MiB of 2,048 MiB"),
        (doctor_checks.memory(3 << 20, 1 << 20, 7 << 20), "look", "4 MiB of 7 MiB"),
        (doctor_checks.memory(3 << 20, 1 << 20, 2 << 30), "ok", "4 MiB of 2,048 MiB"),
        (doctor_checks.disk(REPOSITORY, 1 << 60, 3), "BAD", "3 checkpoints and the best take"),
        (doctor_checks.disk(REPOSITORY, 1 << 10, 3), "ok", "MiB free"),
        (doctor_checks.communication(0.1, 1 << 20, 2, 0.05), "look", "1 MiB of gradients over 2 replicas: 100 ms"),
        (doctor_checks.communication(0.01, 1 << 20, 2, 0.05), "ok", "0.839 Gbit/s; the rest of a step 50 ms"),
        (doctor_checks.communication(0.0, 0, 1, 0.05), "ok", "no communication"),
    ],
)
def test_findings(found, verdict, words):
    assert found.verdict == verdict and words in found.finding
    assert bool(found.advice) == (verdict != "ok")


def test_names_that_do_not_exist_are_found():
    assert doctor_checks.unresolved(["localhost:1", "no-such-host.invalid:2", "no-such-host.invalid:3"]) == [
        "no-such-host.invalid"
    ]
