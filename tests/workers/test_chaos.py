"""A short round of tests.support.chaos; what it says of a training that is not the undisturbed one."""

import json
import re
import shutil
import subprocess
import sys

import chaos
import faults
import numpy as np
import pytest
from launching import REPOSITORY, worker_environment

KINDS = ("kill -9", "kill -9 of the chief while it saves", "SIGTERM to a worker", "a truncated checkpoint")


@pytest.mark.slow
def test_a_training_with_many_faults_equals_an_undisturbed_one():
    command = [sys.executable, "-m", "tests.support.chaos", "--workers=2", f"--faults={len(KINDS) + 1}", "--seed=3"]
    # A machine that others use as well may take any time.
    command += ["--limit=600", "--steps=110", f"--kinds={','.join([*KINDS, 'a vanished workdir'])}"]
    done = subprocess.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and "faults, 0 violations, seed 3" in done.stdout, done.stdout
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    counts = {row[0]: int(row[1]) for row in rows if row[0] in faults.KINDS}
    assert {*KINDS} <= {*counts} and sum(counts.values()) >= len(KINDS), done.stdout


@pytest.fixture
def two_runs(tmp_path):
    """Two equal workdirs."""
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "checkpoints" / "step-00000004").mkdir(parents=True)
    np.savez(first / "checkpoints" / "step-00000004" / "arrays.npz", weight=np.ones(3, np.float32))
    lines = [{"kind": "train", "step": step, "loss": 0.5 + step, "accuracy": 0.5} for step in range(1, 5)]
    lines.append({"kind": "evaluation", "step": 4, "loss": 0.25, "accuracy": 0.75})
    (first / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copytree(first, second)
    return first, second


def test_a_single_bit_is_noticed(two_runs):
    weight = np.ones(3, np.float32)
    weight[1] = np.nextafter(weight[1], 2)
    np.savez(two_runs[1] / "checkpoints" / "step-00000004" / "arrays.npz", weight=weight)
    assert chaos.differences(*two_runs, may_miss=True) == ["weight differs"]


def test_another_end_is_noticed(two_runs):
    (two_runs[1] / "checkpoints" / "step-00000004").rename(two_runs[1] / "checkpoints" / "step-00000003")
    (said,) = chaos.differences(*two_runs, may_miss=True)
    assert said == "the last checkpoint is step-00000003 instead of step-00000004"


@pytest.mark.parametrize(
    ("old", "new", "may_miss", "words"),
    [
        ('"loss": 0.25', '"loss": 0.25000000000000006', True, "evaluation at step 4: .* instead of"),
        ('"step": 2', '"step": 1', True, "train is reported twice or out of order"),
        ('"train", "step": 3', '"lost", "step": 3', False, r"train is missing at steps \[3\]"),
        ('"train", "step": 3', '"lost", "step": 3', True, None),
        ('"evaluation"', '"lost"', True, r"evaluation is missing at steps \[4\]"),
    ],
)
def test_other_reports_are_noticed(two_runs, old, new, may_miss, words):
    path = two_runs[1] / "metrics.jsonl"
    path.write_text(path.read_text().replace(old, new))
    said = chaos.differences(*two_runs, may_miss=may_miss)
    assert re.search(words, "\n".join(said)) if words else said == []
