"""Forty workers on this machine, by the command that starts a thousand: `python -m tests.crowd`."""

import json
import subprocess
import sys

from launching import REPOSITORY


def test_forty_workers_meet_and_name_those_that_are_lost():
    command = [sys.executable, "-m", "tests.crowd", "--workers=40", "--heartbeat_seconds=3", "--cases=killed,fifth"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"killed": True, "fifth": True}
    assert "killed: 40 of 40 workers met" in done.stdout and "fifth: 32 of 32 ended" in done.stdout
