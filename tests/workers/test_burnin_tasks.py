"""`tfdist burnin` with real tasks on this machine: planted faults are named, and a clean round has no alarm."""

import sys

import processes
import pytest
from launching import worker_environment
from processes import REPOSITORY

FAULTS = {1: "bit", 3: "nan", 5: "slow", 7: "link"}


def run(folder, faults, tasks=9, rounds=10):
    """Returns the exit code and the output of rank 0."""
    script = str(REPOSITORY / "tests" / "support" / "burnin_task.py")
    commands = [
        [sys.executable, script, str(folder), str(rank), str(tasks), faults.get(rank, "none"), str(rounds)]
        for rank in range(tasks)
    ]
    env = worker_environment(PYTHONPATH=str(REPOSITORY))
    codes, outputs = processes.run(commands, [env] * tasks, timeout=900)
    assert codes[1:] == [0] * (tasks - 1), outputs
    return codes[0], outputs[0]


@pytest.mark.slow
def test_planted_faults_are_named_and_clean_tasks_are_not(tmp_path):
    code, text = run(tmp_path / "faults", FAULTS)
    assert code == 1 and "--exclude=n1,n3,n5,n7\n" in text, text
    assert "1 of 10 rounds gave other bits than most" in text and "1 of 10 rounds gave NaN or infinity" in text
    code, text = run(tmp_path / "clean", {}, tasks=6)
    assert code == 0 and "--exclude" not in text and "6 devices, 0 nodes with a problem" in text, text
