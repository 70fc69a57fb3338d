"""`tfdist compare`: what differs between runs."""

import json
import subprocess
import sys

import pytest
from test_many_runs import write_run

from tfdist.tools.many_runs import compare as compare_lib
from tfdist.tools.many_runs import run_state

VERSIONS = {"tfdist": "0.1.0", "keras": "3.15.1"}


def describe(workdir, *, changed=False, workers=1):
    """Writes environment.json and data.json, as a run does."""
    git = {"commit": "a" * 40, "changed": changed}
    roster = [f"{workers} workers: host one, pid {id(workdir)}, 1 CPU each"]
    values = {"git": git, "versions": VERSIONS, "host": "one", "workers": roster, "python": "3.11.7"}
    (workdir / "environment.json").write_text(json.dumps(values))
    (workdir / "data.json").write_text(json.dumps({"examples": "digits: 1442 examples"}))
    return workdir


def hash_states(workdir, hashes, function="farmhash64"):
    """Adds (step, hash of the state) to metrics.jsonl, as a run does."""
    lines = [{"kind": "state", "step": step, "hash": one, "function": function} for step, one in hashes]
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text().rpartition("\n")[0] + "\n" + "".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def compare(*arguments, cwd):
    """Runs `tfdist compare`; returns what it printed."""
    command = [sys.executable, "-m", "tfdist", "compare", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_what_differs_is_shown(tmp_path):
    one = describe(write_run(tmp_path / "one", learning_rate__peak=0.1, cluster__port_base=1))
    two = describe(write_run(tmp_path / "two", learning_rate__peak=0.2, cluster__port_base=2), workers=2)
    configs = [run_state.read_config(path) for path in (one, two)]
    assert run_state.differing(configs) == [{"learning_rate.peak": peak} for peak in (0.1, 0.2)]
    found = []
    for run, end in ((one, "1"), (two, "2")):  # Code and machines.
        facts = json.loads((run / "environment.json").read_text())
        facts |= {"git": {"commit": "a" * 40, "changed": True, "diff": end}, "processor": end, "gpu": {"driver": end}}
        facts |= {"code": {"my_lab.py": end, "other.py": "c"}, "threads": {"cores": 2, "in an op": end}}
        facts["versions"] |= {"keras": end}
        (run / "environment.json").write_text(json.dumps(facts))
        found.append(compare_lib._about(run))
    names = ("versions.keras", "git.diff", "code.my_lab.py", "processor", "threads.in an op", "gpu.driver")
    assert run_state.differing(found) == [dict.fromkeys(names, end) for end in "12"]


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("0a 40b 45c", "0a 40b 45d"), "equal until step 40, different at step 45."),
        (("0a 5b 9c", "0a 9d 12e"), "equal until step 0, different at step 9."),
        (("0a 9b", "0c 9b"), "different at step 0,"),
        (("0a 40b 45c", "0a 40b"), "equal until step 40, the last of 2 "),
        # An evaluation has changed the state, and only one of them has recorded it before and after.
        (("0a 9b", "0a 9x 9b"), "equal until step 9, the last of 2 "),
        (("4a", "5a"), "not compared, "),
        (("4a", ""), "not compared, "),
        (("0a 5b", "0a 5b", "0a 5c"), "equal until step 0, different at step 5."),
    ],
)
def test_the_first_state_that_differs_is_named(tmp_path, states, words):
    runs = []
    for number, text in enumerate(states):
        hashes = [(int(word[:-1]), word[-1]) for word in text.split()]
        runs.append(hash_states(write_run(tmp_path / str(number)), hashes))
    assert compare_lib.first_difference(runs).startswith(f"State: {words}")
    on_gpu = hash_states(write_run(tmp_path / "gpu"), [(0, "z")], "multiply64")
    assert compare_lib.first_difference([runs[0], on_gpu]).startswith("State: not compared, ")


def a_sweep(folder):
    """Six runs: three learning rates with two seeds each."""
    for rate in (0.01, 0.1, 1.0):
        for seed in (0, 1):
            workdir = write_run(folder / f"peak={rate}-seed={seed}", learning_rate__peak=rate, seed=seed, finished=True)
            describe(workdir, changed=True)
    return folder


@pytest.mark.slow
def test_the_command_prints_one_table(tmp_path):
    a_sweep(tmp_path / "lr")
    (write_run(tmp_path / "lr" / "half", model__target="a:<b>", seed=5) / "metrics.jsonl").unlink()
    output = compare("lr", cwd=tmp_path)
    header, _, *lines = output.splitlines()
    assert header.split()[:4] == ["run", "model.target", "seed", "learning_rate.peak"] and len(lines) == 7 + 2
    assert "data.batch_size" not in output
    for seed in (0, 1):
        hash_states(tmp_path / "lr" / f"peak=0.1-seed={seed}", [(0, "a"), (10, f"{seed}")])
    one = compare("lr/peak=0.1-seed=0", "lr/peak=0.1-seed=1", cwd=tmp_path)
    assert "\n\nState: equal until step 0, different at step 10. " in one
    assert "seed" in one and "learning_rate.peak" not in one
