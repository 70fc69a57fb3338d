"""What the files of runs say: state, progress and metrics, and which runs are below a directory."""

import json
import os
import time

import pytest
from launching import tfdist

from tfdist.checkpoint import workdir_lock
from tfdist.tools.many_runs import run_state, runs


def write_run(workdir, *, epochs=5, evaluated=5, finished=False, end="failed", warnings=(), **fields):
    """Writes the files of a run as a run does; `fields`: of its config, by dotted names with __ for the dot."""
    workdir.mkdir(parents=True)
    config = {"model": {"target": "a:net"}, "data": {"batch_size": 64}, "train": {"epochs": 5.0}, "seed": 0}
    config["checkpoint"] = {"best_metric": "accuracy", "best_mode": "max"}
    for name, value in fields.items():
        section = config
        *path, last = name.split("__")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    (workdir / "config.json").write_text(json.dumps(config))
    lines = [{"kind": "start", "step": 0, "time": 1000.0}, {"kind": "environment", "time": 1001.0}]
    for epoch in range(1, epochs + 1):
        speed = {"examples_per_second": 900.0, "examples_per_second_per_replica": 450.0}
        values = {"loss": 1 / epoch, "accuracy": 1 - 0.5 / epoch}
        lines.append({"kind": "train", "step": 10 * epoch, "epoch": float(epoch), **values, **speed})
        if epoch <= evaluated:
            values = {"loss": 2 / epoch, "accuracy": 0.5 + 0.1 * min(epoch, 6 - epoch), "best": epoch <= 3}
            lines.append({"kind": "evaluation", "step": 10 * epoch, "epoch": float(epoch), **values})
        lines[-1]["time"] = 1000.0 + 360 * epoch
    lines += [{"kind": "warning", "text": text} for text in warnings]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tra')
    if finished:
        (workdir / "finished.json").write_text(json.dumps({"step": 10 * epochs}))
    start = {"start": 1000, "now": 1900, "step": 10 * epochs, "seconds": 900.0, "end": "finished" if finished else end}
    start |= {"replicas": 2, "steps_per_epoch": 10, "total_steps": 50}
    (workdir / "starts.jsonl").write_text(json.dumps(start) + "\n")
    return workdir


def hold(workdir, *, pid=None, machine=None, age=0.0):
    """Writes the file of the run that holds a workdir: this process, or another one."""
    path = workdir / workdir_lock.LOCK
    path.unlink(missing_ok=True)
    lock = workdir_lock.acquire(workdir, job="7_3", heartbeat_seconds=10.0, wait_seconds=1.0, lost=print, log=print)
    content = json.loads(path.read_text())
    lock.release()
    changed = {} if pid is None else {"pid": pid}
    changed |= {} if machine is None else {"machine": machine}
    path.write_text(json.dumps(content | changed))
    os.utime(path, (time.time() - age,) * 2)


def test_the_state_of_a_run_is_that_of_its_files(tmp_path):
    cases = {
        "finished": write_run(tmp_path / "a", finished=True),
        "stopped": write_run(tmp_path / "b", epochs=3, warnings=["WARNING: slow"], end="stopped"),
        "failed": write_run(tmp_path / "c", epochs=3),
        "running": write_run(tmp_path / "d", epochs=3, end=""),
        "lost": write_run(tmp_path / "e", epochs=3, end=""),
    }
    hold(cases["running"])
    hold(cases["lost"], pid=2**22 - 1)
    assert {name: run_state.read(path)["state"] for name, path in cases.items()} == {name: name for name in cases}
    on_another = write_run(tmp_path / "f", epochs=2, end="")
    hold(on_another, machine="another", age=5.0)
    assert run_state.read(on_another)["state"] == "running" and run_state.read(on_another)["job"] == "7_3"
    hold(on_another, machine="another", age=50.0)
    assert run_state.read(on_another)["state"] == "lost"
    assert run_state.read(cases["stopped"])["trouble"] == "WARNING: slow"


def test_progress_and_metrics(tmp_path):
    run = run_state.read(write_run(tmp_path / "a", learning_rate__peak=0.2))
    assert [run[name] for name in ("step", "epoch", "epochs", "replicas", "hours")] == [50, 5.0, 5.0, 2, 0.25]
    best = {name: value for name, value in run.items() if name.startswith("best.")}
    assert best == {"best.step": 30, "best.epoch": 3.0, "best.loss": 2 / 3, "best.accuracy": pytest.approx(0.8)}
    assert run["last.loss"] == 0.4 and run["training.loss"] == 0.2 and run["learning_rate.peak"] == 0.2
    by_loss = run_state.read(write_run(tmp_path / "b", checkpoint__best_metric=None))
    assert by_loss["best.step"] == 50


def test_runs_are_found_below_a_directory_and_damaged_ones_are_named(tmp_path):
    for name in ("sweep/a", "script/fit2", "script/fit10", "script/²", "b"):
        write_run(tmp_path / name)
    (tmp_path / "b" / "config.json").write_text('{"model": ')
    (tmp_path / "empty").mkdir()
    os.symlink(tmp_path, tmp_path / "again")
    found = [str(path.relative_to(tmp_path)) for path in run_state.workdirs(tmp_path, [])]
    assert found == ["b", "script/fit2", "script/fit10", "script/²", "sweep/a"]
    rows, problems = run_state.read_all([tmp_path, tmp_path / "sweep"])
    assert [row["run"].rpartition("/")[2] for row in rows] == ["fit2", "fit10", "²", "a"]
    assert len(problems) == 1 and "b is skipped" in problems[0] and "config.json is damaged" in problems[0]


def test_the_command_sorts_and_filters_runs_without_tensorflow(tmp_path):
    hides = tmp_path / "hides"  # TensorFlow.
    hides.mkdir()
    (hides / "tensorflow.py").write_text("raise SystemExit(9)")
    for number in range(20):
        write_run(tmp_path / "lr" / f"r{number}", epochs=20, learning_rate__peak=number / 10, finished=number % 2 == 0)
    (tmp_path / "lr" / "r3" / "config.json").write_text("{")
    words = ["lr", "--where=peak>1.4", "--where=state=finished", "--sort=-peak"]
    done = tfdist("runs", *words, cwd=tmp_path, PYTHONPATH=str(hides))
    rows = done.stdout.splitlines()
    assert rows[0].split()[:4] == ["run", "state", "step", "epoch"]
    assert [row.split()[:4] for row in rows[2:]] == [[f"lr/r{n}", "finished", "200", "20/5"] for n in (18, 16)]
    assert "lr/r3 is skipped: lr/r3/config.json is damaged" in done.stderr and done.stderr.count("\n") == 1
    output = tfdist("runs", "lr", "--where=run=lr/r18", "--columns=replicas,hours", cwd=tmp_path).stdout
    assert {"replicas", "hours"} < {*output.splitlines()[0].split()}
    done = tfdist("runs", "nowhere", code=1, cwd=tmp_path)
    assert "nowhere cannot be read" in done.stderr and done.stdout == ""


def test_conditions_and_messages_about_fields(tmp_path):
    row = run_state.read(write_run(tmp_path / "runs" / "a", model__sizes=[1, 2], learning_rate__peak=0.1))
    for text, holds in {
        "accuracy>0.79": True,
        "state = lost": False,
        "sizes=[1, 2]": True,
        "peak=1e-1": True,
        "step>1000": False,
        "state>3": False,
        "job<7": False,
    }.items():
        name, *rest = runs._condition(text, [row])
        assert runs._holds(row.get(name), *rest) == holds, text
    for text, message in {
        "peek=1": "No run has a field 'peek'",
        "best.acuracy>1": "Nearest: best.accuracy",
        "loss>1 and step=3": "--where='loss>1 and step=3' is not a condition",
        "step": "--where='step' is not a condition",
    }.items():
        with pytest.raises(ValueError, match=message):
            runs._condition(text, [row])
