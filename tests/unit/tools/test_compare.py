"""`tfdist compare`: what differs between runs, and its picture."""

import json
import subprocess
import sys

import pytest
from test_many_runs import write_run

from tfdist.tools.many_runs import compare as compare_lib
from tfdist.tools.many_runs import run_state
from tfdist.tools.pictures import curves

pytest.importorskip("matplotlib")
VERSIONS = {"tfdist": "0.1.0", "keras": "3.15.1"}


def describe(workdir, *, keras="3.15.1", commit="a" * 40, changed=False, host="one", workers=1):
    """Writes environment.json and data.json, as a run does."""
    git, versions = {"commit": commit, "changed": changed}, VERSIONS | {"keras": keras}
    roster = [f"{workers} workers: host {host}, pid {id(workdir)}, 1 CPU each"]
    values = {"git": git, "versions": versions, "host": host, "workers": roster, "python": "3.11.7"}
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
    two = describe(
        write_run(tmp_path / "two", learning_rate__peak=0.2, cluster__port_base=2), keras="3.14.0", workers=2
    )
    assert run_state.differing([run_state.read_config(path) for path in (one, two)]) == [
        {"learning_rate.peak": 0.1},
        {"learning_rate.peak": 0.2},
    ]
    found = run_state.differing([compare_lib._about(path) for path in (one, two)])
    assert found == [{"versions.keras": "3.15.1"}, {"versions.keras": "3.14.0"}]
    values = {"a.b": 1, "c": None, "d": 2, "e": 3, "f": 4}
    assert curves.in_words(values) == "a.b 1, c None, d 2, e 3, and 1 more fields"


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            [(0, "a"), (40, "b"), (45, "c")],
            [(0, "a"), (40, "b"), (45, "d")],
            "equal until step 40, different at step 45.",
        ),
        ([(0, "a"), (5, "b"), (9, "c")], [(0, "a"), (9, "d"), (12, "e")], "equal until step 0, different at step 9."),
        (
            [(0, "a"), (9, "b")],
            [(0, "c"), (9, "b")],
            "different at step 0, the first after which all runs have a hash.",
        ),
        (
            [(0, "a"), (40, "b"), (45, "c")],
            [(0, "a"), (40, "b")],
            "equal until step 40, the last of 2 after which all runs have a hash.",
        ),
        # An evaluation has changed the state, and only one of them has recorded it before and after.
        (
            [(0, "a"), (9, "b")],
            [(0, "a"), (9, "x"), (9, "b")],
            "equal until step 9, the last of 2 after which all runs have a hash.",
        ),
        (
            [(4, "a")],
            [(5, "a")],
            "not compared, there is no step after which all runs have a hash by the same function.",
        ),
        ([(4, "a")], [], "not compared, there is no step after which all runs have a hash by the same function."),
    ],
)
def test_the_first_state_that_differs_is_named(tmp_path, first, second, sentence):
    names = ["one", "two"]
    runs = [hash_states(write_run(tmp_path / name), one) for name, one in zip(names, (first, second), strict=True)]
    assert compare_lib.first_difference(runs) == f"State: {sentence}"


def test_states_of_three_runs_and_of_other_functions(tmp_path):
    runs = [
        hash_states(write_run(tmp_path / name), [(0, "a"), (5, last)])
        for name, last in (("one", "b"), ("two", "b"), ("three", "c"))
    ]
    assert compare_lib.first_difference(runs) == "State: equal until step 0, different at step 5."
    on_gpu = hash_states(write_run(tmp_path / "gpu"), [(0, "z")], "multiply64")
    assert compare_lib.first_difference([runs[0], on_gpu]).startswith("State: not compared, there is no step ")


def test_code_and_machines_that_differ_are_named(tmp_path):
    runs = [describe(write_run(tmp_path / name)) for name in ("one", "two")]
    facts = {
        "git": {"commit": "a" * 40, "changed": True, "diff": "12345678"},
        "code": {"my_lab.py": "aa", "other.py": "cc", "tfdist": "dd"},
        "processor": "P",
        "threads": {"cores": 2, "in an op": 0},
        "gpu": {"driver": "580.1"},
    }
    changes = {
        "git": {"commit": "a" * 40, "changed": True, "diff": "90abcdef"},
        "code": {"my_lab.py": "bb", "other.py": "cc", "tfdist": "dd"},
        "processor": "Q",
        "threads": {"cores": 2, "in an op": 1},
        "gpu": {"driver": "580.2"},
    }
    for run, more in zip(runs, (facts, changes), strict=True):
        path = run / "environment.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    assert run_state.differing([compare_lib._about(run) for run in runs]) == [
        {
            "git.diff": "12345678",
            "code.my_lab.py": "aa",
            "processor": "P",
            "threads.in an op": 0,
            "gpu.driver": "580.1",
        },
        {
            "git.diff": "90abcdef",
            "code.my_lab.py": "bb",
            "processor": "Q",
            "threads.in an op": 1,
            "gpu.driver": "580.2",
        },
    ]


def test_captions_say_what_differs(tmp_path):
    one, two = write_run(tmp_path / "one", seed=1), write_run(tmp_path / "two", seed=2)
    figure = curves.draw(curves.read([one, two]))
    assert figure.get_supxlabel() == "one: seed 1\ntwo: seed 2"
    again = write_run(tmp_path / "again", seed=1)
    assert curves.draw(curves.read([one, again])).get_supxlabel() == ("net, batch 64")
    assert curves.draw(curves.read([one])).get_supxlabel() == "net, batch 64"


def a_sweep(folder):
    """Six runs: three learning rates with two seeds each."""
    for rate in (0.01, 0.1, 1.0):
        for seed in (0, 1):
            workdir = write_run(folder / f"peak={rate}-seed={seed}", learning_rate__peak=rate, seed=seed, finished=True)
            describe(workdir, changed=True)
    return folder


def test_the_command_prints_one_table_and_draws_one_picture(tmp_path):
    a_sweep(tmp_path / "lr")
    (write_run(tmp_path / "lr" / "half", model__target="a:<b>", seed=5) / "metrics.jsonl").unlink()
    output = compare("lr", cwd=tmp_path)
    header, _, *lines = output.splitlines()
    assert header.split()[:4] == ["run", "model.target", "seed", "learning_rate.peak"] and len(lines) == 7 + 3
    assert "data.batch_size" not in output and output.endswith("lr/compare.png, compare.svg\n")
    for seed in (0, 1):
        hash_states(tmp_path / "lr" / f"peak=0.1-seed={seed}", [(0, "a"), (10, f"{seed}")])
    one = compare("lr/peak=0.1-seed=0", "lr/peak=0.1-seed=1", "--out=both/of_them", cwd=tmp_path)
    assert "\n\nState: equal until step 0, different at step 10.\n" in one
    assert "seed" in one and "learning_rate.peak" not in one
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["of_them.png", "of_them.svg"]
