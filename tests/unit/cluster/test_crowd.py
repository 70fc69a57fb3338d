"""Forty workers on this machine, by the command that starts a thousand: `python -m tests.crowd`."""

import json
import subprocess
import sys

import processes


def test_forty_workers_meet_and_name_those_that_are_lost():
    cases = {"killed": "killed: 40 of 40 workers met", "fifth": "fifth: 32 of 32 ended"}
    crowd = [sys.executable, "-m", "tests.crowd", "--workers=40", "--heartbeat_seconds=3"]
    commands = [[*crowd, f"--cases={case}"] for case in cases]
    with processes.started(commands, [None] * len(commands), popen=subprocess.Popen, grace=10.0) as started:
        outputs = [process.communicate(timeout=300)[0].decode() for process in started]
    for (case, words), process, output in zip(cases.items(), started, outputs, strict=True):
        assert process.returncode == 0, output
        assert json.loads(output.splitlines()[-1]) == {case: True} and words in output, output
