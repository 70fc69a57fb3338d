"""`tfdist compare`: what differs between runs."""

import json

import pytest
from launching import tfdist
from test_many_runs import write_run

from tfdist.tools.many_runs import compare as compare_lib
from tfdist.tools.many_runs import run_state


def hash_states(workdir, hashes, function="farmhash64"):
    """Adds (step, hash of the state) to metrics.jsonl, as a run does."""
    lines = [{"kind": "state", "step": step, "hash": one, "function": function} for step, one in hashes]
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text().rpartition("\n")[0] + "\n" + "".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def test_only_what_differs_is_shown(tmp_path):
    configs, found = [], []
    for end in "12":
        run = write_run(tmp_path / end, learning_rate__peak=float(end), cluster__port_base=int(end))
        facts = {"git": {"commit": "a" * 40, "changed": True, "diff": end}, "processor": end, "gpu": {"driver": end}}
        facts |= {"code": {"my_lab.py": end, "other.py": "c"}, "threads": {"cores": 2, "in an op": end}}
        facts |= {"versions": {"tfdist": "0.1.0", "keras": end}, "host": "one", "workers": [f"pid {end}"]}
        (run / "environment.json").write_text(json.dumps(facts))
        configs.append(run_state.read_config(run))
        found.append(compare_lib._about(run))
    assert run_state.differing(configs) == [{"learning_rate.peak": peak} for peak in (1.0, 2.0)]
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


@pytest.mark.slow
def test_many_runs_are_rows_of_one_table(tmp_path):
    """Two are columns: tests/docs/test_many_runs_page.py."""
    for number in range(6):
        write_run(tmp_path / "lr" / f"r{number}", seed=number)
    (write_run(tmp_path / "lr" / "half", model__target="a:<b>", seed=5) / "metrics.jsonl").unlink()
    output = tfdist("compare", "lr", cwd=tmp_path).stdout
    header, _, *lines = output.splitlines()
    assert header.split()[:3] == ["run", "model.target", "seed"] and len(lines) == 7 + 2
    assert "data.batch_size" not in output and "\n\nState: not compared, " in output
