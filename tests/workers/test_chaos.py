"""A short round of tests.support.chaos."""

import re
import subprocess
import sys

import faults
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
