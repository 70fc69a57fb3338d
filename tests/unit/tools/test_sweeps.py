"""`tfdist sweep`: what is run, under which names, what is refused before anything starts, and which runs go on."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from launching import REPOSITORY, weights, worker_environment
from parameters import slow_except
from processes import children, until
from test_many_runs import hold, write_run

from tfdist.checkpoint import workdir_lock
from tfdist.cluster.discovery import hostlist
from tfdist.report import metrics_file
from tfdist.tools.many_runs.sweeps import array, command, local, space
from tfdist.tools.many_runs.sweeps import plan as plans
from tfdist.tools.many_runs.sweeps.plan import Plan

DIGITS = ["--config=digits", "--epochs=3", "--config.evaluation.every.epochs=1", "--config.report.tensorboard=false"]


def sweep(*words, code=0, cwd=REPOSITORY):
    """Runs the command on the CPU, asserts its exit code, and returns what it printed."""
    command = [sys.executable, "-m", "tfdist", "sweep", *map(str, words)]
    env = worker_environment() | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=580)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code in (0, 75) else done.stdout + done.stderr


@pytest.mark.unit
def test_lists_ranges_and_intervals():
    assert space.parse("learning_rate.peak=0.1, 0.2").values == ("0.1", "0.2")
    assert space.parse("seed=-1..1,7").values == ("-1", "0", "1", "7")
    assert space.parse("--config.model.sizes=[1,2],[3]").values == ("[1,2]", "[3]")
    assert space.parse("optimizer={'target': 'a:b', 'x': 1},{'target': 'c:d'}").values[1] == "{'target': 'c:d'}"
    assert space.of_values("seed", [0, 1]).values == ("0", "1") and space.of_values("seed", "0..1").values == ("0", "1")
    fields = [space.parse("a=1,2"), space.parse("b=0..2")]
    rows = space.grid(fields)
    assert rows[:2] == [{"a": "1", "b": "0"}, {"a": "1", "b": "1"}] and len(rows) == 6
    for text, said in (
        ("a", "must be FIELD=VALUES"),
        ("a=4..1", "is empty"),
        ("a=0..1000000000000", r"too long: draw with --random=N and int\(LOW,HIGH\)"),
        ("a=1,,2", "must be a list"),
        ("a=loguniform(1,2)", "must be a list"),
        ("a=it's,b", r"a quotation mark or a bracket is without its other one\. Received: \"it's,b\""),
        ("a=[1,2", "a quotation mark or a bracket"),
        ("a=log(0,1)", "both above 0"),
        ("a=int(0.5,3)", "both whole"),
        ("a=uniform(2,1)", "a lower and a higher"),
    ):
        with pytest.raises(ValueError, match=said):
            space.parse(text)
    with pytest.raises(ValueError, match="add --random=N"):
        space.grid([space.parse("a=log(1,2)")])
    with pytest.raises(ValueError, match="--set: 40,000 runs are more than 10,000: draw some of them with --random=N"):
        space.grid([space.parse("a=1..200"), space.parse("b=1..200")])
    with pytest.raises(ValueError, match="given twice"):
        space.as_fields({}, ["a=1", "a=2"])
    given = {"learning_rate.peak": [0.1], "seed": "0..2"}
    assert [field.values for field in space.as_fields(given, ["seed=7"])] == [("0.1",), ("7",)]


@pytest.mark.unit
def test_draws_are_the_same_each_time_and_more_of_them_keep_the_first():
    fields = [space.parse("rate=log(1e-5,1e-2)"), space.parse("size=int(1,4)"), space.parse("seed=0..2")]
    rows = space.draws(fields, 300, seed=0)
    assert space.draws(fields, 20, seed=0) == rows[:20] != space.draws(fields, 20, seed=1)
    rates = np.array([float(row["rate"]) for row in rows])
    assert rates.min() >= 1e-5 and rates.max() <= 1e-2
    assert abs(np.mean(np.log10(rates)) + 3.5) < 0.2  # Uniform in the logarithm.
    assert {row["size"] for row in rows} == {"1", "2", "3", "4"} and {row["seed"] for row in rows} == {"0", "1", "2"}
    assert len(space.draws([space.parse("seed=0..2")], 20, seed=0)) == 3  # There are no more.


@pytest.mark.unit
def test_names_are_readable_and_different():
    rows = space.grid([space.parse("learning_rate.peak=0.1"), space.parse("data.batch_size=8,16")])
    assert space.names(rows) == ["peak=0.1_batch_size=8", "peak=0.1_batch_size=16"]
    both = space.grid([space.parse("train.steps=1"), space.parse("report.every.steps=-2")])
    assert space.names(both) == ["train.steps=1_every.steps=-2"]
    assert space.names([{"model.filters": "[16, 32]"}]) == ["filters=16-32"]
    names = space.names([{"a": "{'target': 'x'}"}, {"a": "{'target': [x]}"}, {"a": "x" * 300}])
    assert len(set(names)) == 3 and all(len(name) < 60 and "/" not in name for name in names)
    long = space.names([{f"field_{number}": "\u00e4" * 40 for number in range(9)} | {"seed": seed} for seed in "01"])
    assert len({*long}) == 2 and all(len(name.encode()) < 210 for name in long)


@pytest.mark.unit
def test_a_second_command_in_the_workdir_adds_runs_and_keeps_the_earlier_ones(tmp_path):
    def plan(*values):
        rows = [{"model": value, "seed": "0"} for value in values]
        return Plan(runs=dict(zip(space.names(rows), rows, strict=True)))

    first = plan("a/b")
    both = plans.merge(first, plan("a-b"), tmp_path)
    assert both.runs["model=a-b_seed=0"] == {"model": "a/b", "seed": "0"} and len(both.runs) == 2
    for again in (plan("a-b"), plan("a/b"), plan("a/b", "a-b")):
        assert plans.merge(both, again, tmp_path).runs == both.runs
    other = dataclasses.replace(both, metric="f1", mode="max")
    assert plans.merge(both, other, tmp_path) == other
    with pytest.raises(ValueError, match="its config was '', and is now '--config=digits'"):
        plans.merge(both, dataclasses.replace(both, config=("--config=digits",)), tmp_path)
    plans.write(tmp_path, both)
    saved = tmp_path / plans.FILE
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"prune": [2], "proposals": {}}))
    assert plans.read(tmp_path) == both  # Of an earlier release.


def test_a_sweep_goes_on_after_its_machine_was_restarted(tmp_path):
    """The process of the sweep that was killed belongs to another boot: whether it lives is not known at once."""
    for seed in (0, 1):
        write_run(tmp_path / f"seed={seed}", finished=True)
    words = ["--config=digits", "--config.train.epochs", "4", "--set", "seed=0", f"--workdir={tmp_path}"]
    assert "seed=0  finished" in sweep(*words)
    plan, lock = plans.read(tmp_path), tmp_path / workdir_lock.LOCK
    assert "--config.train.epochs=4" in plan.config
    hold(tmp_path, machine="another boot")
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"heartbeat_seconds": 2.0}))
    os.utime(lock, (time.time() - 60,) * 2)
    command, env = [sys.executable, "-m", "tfdist", "sweep", *words], worker_environment()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPOSITORY, env=env, **pipes) as process:
        assert "waiting for the run" in process.stderr.readline()
        plans.write(tmp_path, dataclasses.replace(plan, runs=plan.runs | {"seed=1": {"seed": "1"}}))
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and "took over" in errors and not lock.exists(), printed + errors
    assert "seed=1  finished" in printed and len(plans.read(tmp_path).runs) == 2


@pytest.mark.unit
def test_the_machine_is_divided_among_the_runs(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    found = local.slots(2, on_cpu=False)
    assert [slot.env["CUDA_VISIBLE_DEVICES"] for slot in found] == ["0,1", "2,3"]
    assert len(local.slots(None, on_cpu=False)) == 4
    with pytest.raises(ValueError, match="--max-at-once=5, but there are 4 GPU"):
        local.slots(5, on_cpu=False)
    cores = os.sched_getaffinity(0)
    found = local.slots(len(cores), on_cpu=True)
    assert frozenset().union(*(slot.cores for slot in found)) == cores and all(len(slot.cores) == 1 for slot in found)
    with pytest.raises(ValueError, match=f"this machine has {len(cores)} cores"):
        local.slots(len(cores) + 1, on_cpu=True)


@pytest.mark.unit
def test_a_metric_that_no_evaluation_has_is_told(tmp_path, capsys):
    plan = Plan(runs={name: {"seed": name} for name in "abc"}, metric="f1", mode="max")
    for name, value in (("a", 0.5), ("b", math.nan), ("c", 0.9)):
        (tmp_path / name).mkdir()
        record = {"kind": "evaluation", "step": 20, "epoch": 2.0, "accuracy": 0.5, "f1": value}
        (tmp_path / name / metrics_file.METRICS).write_bytes(metrics_file.json_line(record))
    command.show(plan, tmp_path, False)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:5]] == ["c", "a", "b"]
    assert printed[5] == f"best: {tmp_path}/c with f1 0.9"
    with pytest.raises(ValueError, match=r"--metric=f2: no evaluation has this value\. They have: accuracy, f1"):
        command.show(dataclasses.replace(plan, metric="f2"), tmp_path, False)


@pytest.mark.unit
def test_a_queue_that_is_not_known_is_not_empty(tmp_path, monkeypatch):
    (tmp_path / array.FILE).write_text(json.dumps({"jobs": ["17"]}))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for text, found in (("echo 17_3; echo 18_1", {"17_3"}), ("echo 'Socket timed out' >&2; exit 1", None)):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "squeue").chmod(0o755)
        if found is not None:
            assert array.in_queue(tmp_path) == found
            continue
        with pytest.raises(ValueError, match=r"what is in the queue: Socket timed out\. Try again later"):
            array.in_queue(tmp_path)


@pytest.mark.unit
def test_options_of_sbatch_are_told_apart():
    given = ["--config=x", "--nodes=2", "--gpus_per_node", "4", "--exclusive", "--max_at_once=8"]
    assert array.divide(given) == (["--config=x", "--max_at_once=8"], ["--nodes=2", "--gpus-per-node=4", "--exclusive"])
    assert hostlist.ranges([0, 1, 2, 5, 7, 8], ",") == "0-2,5,7-8"
    given = array.with_defaults(["--nodes=2", "--job-name=mine"], pathlib.Path("/sweeps/5%j"))
    assert given == ["--nodes=2", "--job-name=mine", "--output=/sweeps/5%%j/slurm-%A_%a.log"]


ERRORS = (
    (["--set", "learning_rate.peek=1"], "Did you mean 'learning_rate.peak'?"),
    (
        ["--set", "data.batch_size=8,0"],
        "the run .*batch_size=0 is invalid.*data.batch_size must be at least 1. Received: 0",
    ),
    (["--set", "learning_rate.peak=log(1e-5,1)"], "is an interval"),
    (["--set", "seed=1", "--config.seed=2"], "contradict each other"),
    (["--set", "seed=1", "--prune=7"], "--prune was removed: all runs of a sweep train to their end"),
    (["--set", "seed=1", "--nodes=3"], "--nodes=3 is an option of sbatch"),
    (["--set", "seed=1", "--metric=f1"], "--mode=max or --mode=min"),
    (["--set", "seed=1", "--max-at-once=900"], "this machine has"),
)


def test_a_sweep_of_a_config_is_overridden_by_the_command_line(tmp_path):
    (tmp_path / "own.py").write_text(
        "from tfdist.configs import digits\nget_config = digits.get_config\n"
        'def get_sweep():\n    return {"seed": [0, 1], "learning_rate.peak": "0.1,0.2"}\n'
    )
    config = f"--config={tmp_path}/own.py"
    printed = sweep(config, "--set", "seed=5", "--dry-run", f"--workdir={tmp_path}/a")
    assert printed.splitlines()[:2] == ["seed=5_peak=0.1", "seed=5_peak=0.2"]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("words", "said"), slow_except(ERRORS, ERRORS[:2]))
def test_errors_are_reported_before_anything_starts(tmp_path, words, said):
    printed = sweep("--config=configs/digits.py", *words, f"--workdir={tmp_path}/a", code=1)
    assert re.search(said, printed, re.DOTALL), printed
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_twelve_runs_over_two_slots_killed_twice_and_finished(tmp_path):
    """The runs are those that nothing interrupts. One of them fails, and is named."""
    words = [*DIGITS, "--set", "learning_rate.peak=0.05,0.1,0.2", "--set", "seed=0..3", "--max-at-once=2"]
    command = [sys.executable, "-m", "tfdist", "sweep", *words, f"--workdir={tmp_path}/sweep"]
    first = tmp_path / "sweep" / "peak=0.05_seed=0"

    def start():
        env = worker_environment() | {"PYTHONPATH": str(REPOSITORY)}
        return subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)

    def saved():
        return list(tmp_path.glob("sweep/*/checkpoints/step-*"))

    first.mkdir(parents=True)
    (first / "checkpoints").touch()  # A file, and no directory: this run fails.
    process = start()
    until(saved, 200)
    workers = until(lambda: children(process.pid), 10)
    os.kill(workers[-1], signal.SIGKILL)  # One run,
    before = len(saved())
    until(lambda: len(saved()) > before, 200)
    workers = children(process.pid)
    process.kill()  # and the sweep: no run outlives it.
    process.wait()
    until(lambda: not any(map(psutil.pid_exists, workers)), 20)
    again = start()
    before = len(saved())
    until(lambda: len(saved()) > before, 200)
    workers = children(again.pid)
    again.send_signal(signal.SIGINT)
    printed, _ = again.communicate(timeout=120)
    assert again.returncode == 75 and "run the same command again to continue" in printed, printed
    assert not any(map(psutil.pid_exists, workers))
    printed = sweep(*words, f"--workdir={tmp_path}/sweep", code=1)
    assert "failed: peak=0.05_seed=0: " in printed and "1 of 12" not in printed
    (first / "checkpoints").unlink()
    printed = sweep(*words, f"--workdir={tmp_path}/sweep")
    assert "started (1 of 1)" in printed and "best: " in printed, printed
    assert len(list(tmp_path.glob("sweep/*/finished.json"))) == 12
    assert json.loads((first / plans.OVERRIDES).read_text()) == {"learning_rate.peak": "0.05", "seed": "0"}
    alone = [sys.executable, "-m", "tfdist.main", *DIGITS, "--config.seed=2", "--config.learning_rate.peak=0.1"]
    # On as many cores as a run of the sweep has: sums over more threads are rounded otherwise.
    cores = set(sorted(os.sched_getaffinity(0))[: len(os.sched_getaffinity(0)) // 2 or 1])
    subprocess.run(
        [*alone, f"--workdir={tmp_path}/alone"],
        cwd=REPOSITORY,
        env=worker_environment() | {"PYTHONPATH": str(REPOSITORY)},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        check=True,
    )
    for name, value in weights(tmp_path / "alone").items():
        np.testing.assert_array_equal(value, weights(tmp_path / "sweep" / "peak=0.1_seed=2")[name])


def page_commands():
    """The first block of the page: from nothing to the best of 12 runs."""
    page = (REPOSITORY / "docs" / "sweeps.md").read_text()
    return re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1].splitlines()


def test_the_first_command_of_the_page_is_twelve_runs(tmp_path):
    first, second, third = (shlex.split(line) for line in page_commands())
    printed = sweep(*first[2:-1], f"--workdir={tmp_path}", "--dry-run", cwd=tmp_path)
    assert f"12 runs in {tmp_path}" in printed and third[2].rpartition("/")[2] in printed
    assert second[:3] == ["tfdist", "runs", "sweeps/digits"] and third[1] == "evaluate"


@pytest.mark.slow
def test_the_three_commands_of_the_page(tmp_path):
    env = worker_environment() | {"PYTHONPATH": str(REPOSITORY)}
    printed = []
    for line in page_commands():
        command = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    best = re.search(rf"best: {tmp_path}/sweeps/digits/(\S+) with accuracy (0\.9\d+)", printed[0])
    assert best and best[1] in printed[1].splitlines()[2], printed[1]
    assert '"accuracy": 0.9' in printed[2].splitlines()[-1]


@pytest.mark.slow
def test_a_script_is_swept_by_its_own_flags(tmp_path):
    """A flag that the script refuses is the end of that run only."""
    (tmp_path / "my_script.py").write_text(
        "import argparse, keras, numpy as np\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float)\n"
        "rate = parser.parse_args().lr\n"
        "x = np.random.default_rng(0).normal(size=(320, 8)).astype('float32')\n"
        "y = (x.sum(axis=1) > 0).astype('int64')\n"
        "model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])\n"
        "loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
        "model.compile(optimizer=keras.optimizers.SGD(rate), loss=loss, metrics=['accuracy'])\n"
        "model.fit(x, y, epochs=3, batch_size=32, validation_split=0.2)\n"
    )
    words = ["--script=my_script.py", "--set", "lr=0.1,0.001,high", "--max-at-once=2", f"--workdir={tmp_path}/sweep"]
    printed = sweep(*words, code=1, cwd=tmp_path)
    assert f"best: {tmp_path}/sweep/lr=0.1 with loss" in printed and "failed: lr=high" in printed, printed
    assert "invalid float value: 'high'" in printed
    again = sweep(*words, code=1, cwd=tmp_path)
    assert "lr=high: started (1 of 1)" in again
