"""A short round of tests.support.chaos."""

import re
import subprocess

import faults
import pytest
from launching import python

KINDS = ("kill -9", "kill -9 of the chief while it saves", "SIGTERM to a worker", "a truncated checkpoint")


@pytest.mark.slow
def test_a_training_with_many_faults_equals_an_undisturbed_one():
    command = ["-m", "tests.support.chaos", "--workers=2", f"--faults={len(KINDS) + 1}", "--seed=3"]
    # A machine that others use as well may take any time.
    command += ["--limit=600", "--steps=110", f"--kinds={','.join([*KINDS, 'a vanished workdir'])}"]
    done = python(*command, start=subprocess.run, timeout=3600.0)
    assert done.stderr == "" and "faults, 0 violations, seed 3" in done.stdout, done.stdout
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    counts = {row[0]: int(row[1]) for row in rows if row[0] in faults.KINDS}
    assert {*KINDS} <= {*counts} and sum(counts.values()) >= len(KINDS), done.stdout
