"""`tfdist sweep`: what is run, under which names, what is refused before anything starts, and which runs go on."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pages
import psutil
import pytest
from launching import REPOSITORY, tfdist, worker_environment
from parameters import slow_except
from processes import children, until

from tfdist.report import metrics_file
from tfdist.tools.many_runs import sweep as sweeps
from tfdist.tools.many_runs import sweep_jobs
from tfdist.tools.many_runs.sweep_jobs import Job

DIGITS = ["--config=digits", "--epochs=3", "--config.evaluation.every.epochs=1", "--config.report.tensorboard=false"]


def sweep(*words, code=0, cwd=REPOSITORY):
    """Runs the command, and returns what it printed."""
    done = tfdist("sweep", *words, code=code, cwd=cwd, timeout=580)
    return done.stdout if code in (0, 75) else done.stdout + done.stderr


def test_lists_ranges_and_intervals():
    assert sweeps.read_values("learning_rate.peak=0.1, 0.2") == ("learning_rate.peak", ["0.1", "0.2"])
    assert sweeps.read_values("seed=-1..1,7")[1] == ["-1", "0", "1", "7"]
    assert sweeps.read_values("--config.model.sizes=[1,2],[3]") == ("model.sizes", ["[1,2]", "[3]"])
    given = "optimizer={'target': 'a:b', 'x': 1},{'target': 'c:d'}"
    assert sweeps.read_values(given)[1][1] == "{'target': 'c:d'}"
    rows = sweeps.grid({"a": ["1", "2"], "b": ["0", "1", "2"]})
    assert rows[:2] == [{"a": "1", "b": "0"}, {"a": "1", "b": "1"}] and len(rows) == 6
    for text, said in (
        *((text, "must be FIELD=VALUES") for text in ("a", "a=1,,2", "a=loguniform(1,2)", "a=[1,2")),
        *(("a=4..1", "is empty"), ("a=0..1000000000000", "10,000")),
        *(("a=log(0,1)", "above 0"), ("a=int(0.5,3)", "whole"), ("a=uniform(2,1)", "a lower and a higher")),
    ):
        with pytest.raises(ValueError, match=said):
            sweeps.read_values(text)
    for given, said in ((["a=log(1,2)"], "--random=N"), (["a=1..200", "b=1..200"], "40,000 .*10,000.*--random=N")):
        with pytest.raises(ValueError, match=said):
            sweeps.grid(dict(map(sweeps.read_values, given)))


def test_draws_are_the_same_each_time_and_more_of_them_keep_the_first():
    fields = dict(map(sweeps.read_values, ["rate=log(1e-5,1e-2)", "size=int(1,4)", "seed=0..2"]))
    rows = sweeps.draws(fields, 300)
    assert sweeps.draws(fields, 20) == rows[:20]
    rates = np.array([float(row["rate"]) for row in rows])
    assert rates.min() >= 1e-5 and rates.max() <= 1e-2
    assert abs(np.mean(np.log10(rates)) + 3.5) < 0.2  # Uniform in the logarithm.
    assert {row["size"] for row in rows} == {"1", "2", "3", "4"} and {row["seed"] for row in rows} == {"0", "1", "2"}


def test_names_are_readable_and_different():
    assert sweeps.name_of({"learning_rate.peak": "0.1", "data.batch_size": "8"}) == "peak=0.1_batch_size=8"
    assert sweeps.name_of({"train.steps": "1", "report.every.steps": "-2"}) == "train.steps=1_report.every.steps=-2"
    rows = [{"a": "{'target': 'x'}"}, {"a": "{'target': [x]}"}, {"a": "x" * 300}, {"a": "x" * 301}]
    rows += [{"a": "\u00e4" * 300}, {"a": "[1, 2]"}, {"a": "[12]"}]
    names = [sweeps.name_of(row) for row in rows]
    assert len({*names}) == len(rows) and all(len(name.encode()) < 130 and "/" not in name for name in names)


def test_the_machine_is_divided_among_the_runs(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    found = sweep_jobs.slots(2, on_cpu=False)
    assert [slot.env["CUDA_VISIBLE_DEVICES"] for slot in found] == ["0,1", "2,3"]
    assert len(sweep_jobs.slots(None, on_cpu=False)) == 4
    with pytest.raises(ValueError, match="--max_at_once=5, but there are 4 GPU"):
        sweep_jobs.slots(5, on_cpu=False)
    cores = os.sched_getaffinity(0)
    found = sweep_jobs.slots(len(cores), on_cpu=True)
    assert frozenset().union(*(slot.cores for slot in found)) == cores and all(len(slot.cores) == 1 for slot in found)
    with pytest.raises(ValueError, match=f"this machine has {len(cores)} cores"):
        sweep_jobs.slots(len(cores) + 1, on_cpu=True)


def test_the_best_run_comes_first(tmp_path, capsys):
    jobs = [Job(name, tmp_path / name, []) for name in "abc"]
    for job, value in zip(jobs, (0.5, math.nan, 0.9), strict=True):
        job.workdir.mkdir()
        record = {"kind": "evaluation", "step": 20, "epoch": 2.0, "accuracy": 0.5, "f1": value}
        (job.workdir / metrics_file.METRICS).write_bytes(metrics_file.json_line(record))
        (job.workdir / "config.json").write_text('{"checkpoint": {"best_metric": "f1", "best_mode": "max"}}')

    ends = [sweeps.read_end(job, "f1") for job in jobs]
    assert sweeps.show(ends, "f1", "max", stopped=False) == 1  # They are not finished.
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:5]] == ["c", "a", "b"]
    assert printed[5] == f"best: {tmp_path}/c with f1 0.9"


def test_a_sweep_is_one_array_and_none_is_submitted_while_one_is_in_the_queue(tmp_path, monkeypatch):
    jobs = [Job(name, tmp_path / name, ["true"]) for name in "abcd"]
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, text in (("sbatch", f'echo "$@" >> {tmp_path}/asked; echo 17'), ("squeue", "echo other")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "x.sbatch").touch()
    given = f"--nodes=2 --job-name=mine {tmp_path}/x.sbatch"
    sweep_jobs.check_slurm(given)
    assert sweep_jobs.submit(tmp_path, jobs, jobs[1:], given, 8) == 0
    words = (tmp_path / "asked").read_text().split()
    assert words[:2] == ["--parsable", "--array=0-2%8"] and words[-2:] == [f"{tmp_path}/array.json", "%a"]
    assert words.index("--job-name=mine") > words.index(f"--job-name={tmp_path.name}")
    tasks = json.loads((tmp_path / "array.json").read_text())["tasks"]
    assert [task["workdir"] for task in tasks] == [f"{tmp_path}/{name}" for name in "bcd"]
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho other\necho '{tmp_path} '\n")
    assert sweep_jobs.submit(tmp_path, jobs, jobs[1:], given, None) == 0
    assert (tmp_path / "asked").read_text().count("--parsable") == 1
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'Socket timed out' >&2; exit 1\n")
    with pytest.raises(ValueError, match=r"squeue failed, and nothing was submitted: Socket timed out"):
        sweep_jobs.submit(tmp_path, jobs, jobs[1:], given, None)


ERRORS = (
    (["--set", "learning_rate.peek=1"], "Did you mean 'learning_rate.peak'?"),
    (["--set", "data.batch_size=8,0"], "batch_size=0 .*data.batch_size .* 0"),
    (["--set", "seed=1", "--config.seed=2"], "contradict each other"),
    (["--set", "optimizer.momentun=0.8,0.9"], "momentun=0.8 .*Did you mean 'momentum'"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [("sweep", {"config": ["--config=other"]}), ("seed=5/overrides", {"seed": "6"})],
)
def test_runs_of_another_sweep_and_of_other_values_are_refused(tmp_path, name, content):
    """The names of their directories are equal."""
    path = tmp_path / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    printed = sweep("--config=digits", "--set", "seed=5", f"--workdir={tmp_path}", code=1)
    assert f"{path.name} has {content}, and not" in printed and "Choose another --workdir." in printed


@pytest.mark.parametrize(("words", "said"), slow_except(ERRORS, ERRORS[:2]))
def test_errors_are_reported_before_anything_starts(tmp_path, words, said):
    printed = sweep("--config=configs/digits.py", *words, f"--workdir={tmp_path}/a", code=1)
    assert re.search(said, printed, re.DOTALL), printed
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_twelve_runs_over_two_slots_killed_twice_and_finished(tmp_path):
    """One of them fails, and is named. That a killed run resumes to the same bits: tests/workers/test_resume.py."""
    words = [*DIGITS, "--set", "learning_rate.peak=0.05,0.1,0.2", "--set", "seed=0..3", "--max-at-once=2"]
    command = [sys.executable, "-m", "tfdist", "sweep", *words, f"--workdir={tmp_path}/sweep"]
    first = tmp_path / "sweep" / "peak=0.05_seed=0"

    def start():
        return subprocess.Popen(command, cwd=REPOSITORY, env=worker_environment(), stdout=subprocess.PIPE, text=True)

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
    assert json.loads((first / "overrides.json").read_text()) == {"learning_rate.peak": "0.05", "seed": "0"}


def page_commands():
    """The first block of the page: from nothing to the best of 12 runs."""
    return pages.blocks((REPOSITORY / "docs" / "sweeps.md").read_text(), "bash")[0].splitlines()


def test_the_first_command_of_the_page_is_twelve_runs(tmp_path):
    first, second, third = (shlex.split(line) for line in page_commands())
    printed = sweep(*first[2:-1], f"--workdir={tmp_path}", "--dry-run", cwd=tmp_path)
    assert f"12 runs in {tmp_path}" in printed and third[2].rpartition("/")[2] in printed
    assert second[:3] == ["tfdist", "runs", "sweeps/digits"] and third[1] == "evaluate"


@pytest.mark.slow
def test_the_three_commands_of_the_page(tmp_path):
    lines = (shlex.split(line)[1:] for line in page_commands())
    printed = [tfdist(*words, cwd=tmp_path, timeout=1200).stdout for words in lines]
    best = re.search(rf"best: {tmp_path}/sweeps/digits/(\S+) with accuracy (0\.9\d+)", printed[0])
    assert best and best[1] in printed[1].splitlines()[2], printed[1]
    assert '"accuracy": 0.9' in printed[2].splitlines()[-1]
