"""The doctor: what it finds on real workers and on this machine, and its verdict on each fact."""

import math
import re
import sys

import forked
import pytest
from launching import REPOSITORY, run_all, tfdist
from parameters import slow
from topologies import environments

from tfdist.tools.doctor import command as doctor

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}


@pytest.mark.slow
def test_doctor_checks_two_workers_and_finds_no_problem(tmp_path):
    options = [f"--workdir={tmp_path / 'run'}"]
    options += ["--config.cluster.time_limit_seconds=540000", "--config.cluster.connect_seconds=240"]
    line = [sys.executable, "-m", "tfdist", "doctor", "--config=configs/digits.py", *options]
    chief, other = run_all([line] * 2, environments(2))
    lines = {line[:12].strip(): line for line in chief.splitlines()}
    words = {"machine": "cores", "software": "keras 3", "GPUs": "none", "workers": "2 by tf_config"}
    words |= {"config": "32 of 64 examples per replica", "data": "a step's 32 take", "memory": "training takes"}
    words |= {"disk": "MiB free", "all-reduce": "Gbit/s", "time": "660 steps of"}
    for check, finding in words.items():
        assert re.search(rf"^{check} +(ok|look) +.*{re.escape(finding)}", lines.get(check, "")), check + chief
    assert chief.rstrip().endswith(("No problems found.", " findings to look at.")) and "finding" not in other
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.workers
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("--config.model.num_classes=12", "config.model.num_classes=12, but the split 'train'"),
        slow("--config.objective={'target': 'tests.support.lab:changing'}", ".*the same values in training and"),
    ],
)
def test_doctor_names_a_bad_value(tmp_path, bad, words):
    done = tfdist("doctor", "--config=configs/digits.py", f"--workdir={tmp_path}", bad, code=1, start=forked.run)
    assert re.search(rf"^start +BAD +{words}", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.rstrip().endswith(" findings.")


@pytest.mark.slow
def test_the_machine_of_the_tests_has_no_problem(tmp_path):
    said = tfdist("doctor", cwd=tmp_path).stdout
    assert "BAD" not in said and "software  ok" in said and "one, started without a launcher" in said


@pytest.mark.parametrize(
    "found, verdict, words",
    [
        (doctor.software({"avx", "avx2"}, VERSIONS), "ok", "tensorflow 2.21.0"),
        (doctor.software({"avx", "avx2"}, VERSIONS | {"tensorflow": "2.16.1"}), "BAD", "tensorflow>=2.18,<2.23"),
        (doctor.launcher({}), "ok", "one, started without a launcher"),
        (doctor.launcher({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}), "look", "was not started by srun"),
        (doctor.launcher({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}), "BAD", "inconsistent"),
        (doctor.data([1000.0, 400.0], 100), "look", "400 examples/s on the slowest worker (rank 1), 1,000 on the"),
        (doctor.data([1000.0, 900.0], 90), "ok", "a step's 90 take 100.0 ms"),
        (doctor.disk(REPOSITORY, 1 << 60, 3), "BAD", "MiB free"),
        (doctor.disk(REPOSITORY, 1 << 10, 3), "ok", "MiB free"),
        (doctor.communication(0.1, 1 << 20, 2, 0.05), "look", "1 MiB of gradients over 2 replicas: 100 ms"),
        (doctor.communication(0.01, 1 << 20, 2, 0.05), "ok", "0.839 Gbit/s; the rest of a step 50 ms"),
        (doctor.communication(0.0, 0, 1, 0.05), "ok", "no communication"),
        # 36,000 steps and evaluations as long as 3,600 steps; 600 s of each job are its start.
        (doctor.duration(0.1, 39_600, 600, math.inf), "ok", "39,600 steps of 100 ms: about 1:06:00 without"),
        (doctor.duration(0.1, 39_600, 600, 7200.0), "ok", "and 0:10:00 for each start: within one job of"),
        (doctor.duration(0.1, 39_600, 600, 1800.0), "look", "4 jobs of 0:30:00"),
        (doctor.duration(0.1, 39_600, 600, 600.0), "look", "39,600 steps"),
    ],
)
def test_findings(found, verdict, words):
    assert found.verdict == verdict and words in found.text
