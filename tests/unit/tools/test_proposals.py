"""`tfdist sweep --suggest`: what Optuna proposes is one study of all tasks, and an interrupted run keeps its trial."""

import importlib.util
import json
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment
from test_sweeps import sweep

from tfdist.report import metrics_file
from tfdist.tools.many_runs.sweeps import local, proposals
from tfdist.tools.many_runs.sweeps import plan as plans
from tfdist.tools.many_runs.sweeps.plan import Plan

optuna = pytest.importorskip("optuna", reason="pip install 'tfdist[sweeps]'")
PART = {"sampler": "TPESampler", "seed": 0, "space": {"rate": ["log", 1e-4, 1.0], "size": {"values": ["8", "16"]}}}


def plan_of(count, pruner="NopPruner"):
    part = PART | {"count": count, "pruner": pruner}
    return Plan(config=("--config=digits",), metric="accuracy", mode="max", proposals=part)


def rehearse(**parts):
    proposals.rehearse(PART | {"count": 20, "pruner": "NopPruner"} | parts)


def evaluated(workdir, *values, finished=True):
    """Writes what a run writes that has evaluated after each epoch."""
    workdir.mkdir(parents=True, exist_ok=True)
    records = [
        {"kind": "evaluation", "step": 10 * epoch, "epoch": float(epoch), "accuracy": value}
        for epoch, value in enumerate(values, 1)
    ]
    (workdir / metrics_file.METRICS).write_bytes(b"".join(map(metrics_file.json_line, records)))
    if finished:
        (workdir / "finished.json").write_text('{"step": 10}')


# A task of an array; in place of the training, it writes the evaluations of one.
TASK = """
import pathlib, sys
sys.path.insert(0, "tests/unit/tools")
sys.path.insert(0, "tests/support")
from test_proposals import evaluated, plan_of, proposals
workdir, index = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def start(plan, run, command, watch):
    evaluated(run, 0.5, 0.1 * index)
    return 0
sys.exit(proposals.run_task(plan_of(4), workdir, index, start))
"""


@pytest.mark.slow
def test_tasks_at_the_same_time_have_one_study(tmp_path):
    command = [sys.executable, "-c", TASK, str(tmp_path)]
    env = worker_environment() | {"PYTHONPATH": str(REPOSITORY)}
    tasks = [subprocess.Popen([*command, str(index)], cwd=REPOSITORY, env=env) for index in range(4)]
    assert [task.wait(120) for task in tasks] == [0, 0, 0, 0]
    trials = proposals.study(plan_of(4), tmp_path).trials
    assert len({trial.params["rate"] for trial in trials}) == 4
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert sorted(trial.user_attrs["task"] for trial in trials) == [0, 1, 2, 3]
    assert all(trial.value == max(0.5, 0.1 * trial.user_attrs["task"]) for trial in trials)
    assert proposals.over(tmp_path, plan_of(4)) == {0, 1, 2, 3}
    names = proposals.names(tmp_path, plan_of(4))
    assert all((tmp_path / name / plans.OVERRIDES).exists() for name in names) and len(set(names)) == 4


@pytest.mark.unit
def test_a_requeued_task_continues_its_trial(tmp_path):
    commands = []

    def stopped(plan, run, command, watch):
        commands.append(command)
        evaluated(run, 0.3, finished=False)
        (run / plans.END).write_text('{"code": 75, "text": "stopped"}')
        return 75

    def finished(plan, run, command, watch):
        commands.append(command)
        evaluated(run, 0.3, 0.8)
        return 0

    assert proposals.run_task(plan_of(2), tmp_path, 1, stopped) == 75
    assert proposals.run_task(plan_of(2), tmp_path, 1, finished) == 0
    assert commands[0] == commands[1] and any(word.startswith("--config.rate=") for word in commands[0])
    [trial] = proposals.study(plan_of(2), tmp_path).trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 0.8)
    assert json.loads(next(tmp_path.glob(f"trial-000*/{plans.OVERRIDES}")).read_text()).keys() == {"rate", "size"}


@pytest.mark.unit
def test_a_pruner_sees_the_evaluations_of_running_runs(tmp_path):
    plan = plan_of(8, "MedianPruner")
    study = proposals.study(plan, tmp_path)
    stopped = []

    def watched(value):
        def start(plan, run, command, watch):
            evaluated(run, value, value, finished=False)
            stopped.append(watch())
            evaluated(run, value, value, finished=not stopped[-1])
            return 0

        return start

    for index, value in enumerate((0.9, 0.8, 0.9, 0.9, 0.9, 0.1, 0.95)):
        assert proposals.run_task(plan, tmp_path, index, watched(value)) == 0
    assert stopped == [False] * 5 + [True, False]
    assert [trial.state.name for trial in study.trials].count("PRUNED") == 1
    assert list(proposals.read_pruned(tmp_path, plan).values()) == [2]


def test_an_interrupted_proposal_is_replaced_and_a_failed_run_starts_again(tmp_path):
    part = PART | {"count": 1, "pruner": "NopPruner"}
    plan = Plan(config=("--config=missing.py",), metric="accuracy", mode="max", proposals=part, directory=str(tmp_path))
    begun = proposals.study(plan, tmp_path).ask()
    begun.suggest_float("rate", 1e-4, 1.0, log=True)  # The process is killed before it suggests the size.
    ended = []

    def said(job, code):
        ended.append((job.name, code))
        (job.workdir / plans.END).write_text(json.dumps({"code": code, "text": "there is no such file"}))

    for _ in range(2):
        slots = local.slots(1, on_cpu=True)
        proposals.run_here(plan, tmp_path, slots, [], said)
    [name] = proposals.names(tmp_path, plan)
    assert name.startswith("trial-001_rate=") and ended == [(name, 1), (name, 1)]
    assert [trial.state.name for trial in proposals.study(plan, tmp_path).trials] == ["FAIL", "RUNNING"]


@pytest.mark.unit
@pytest.mark.parametrize("part", [{"sampler": "GridSampler"}, {"pruner": "ThresholdPruner"}])
def test_a_class_that_needs_arguments_is_refused(tmp_path, part):
    [(name, value)] = part.items()
    plan = Plan(proposals=PART | {"count": 1, "pruner": "NopPruner"} | part)
    with pytest.raises(ValueError, match=f"--{name}={value} needs more than its name, so choose another: "):
        proposals.study(plan, tmp_path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("part", "package"),
    [
        ({"sampler": "CmaEsSampler"}, "cmaes"),
        ({"sampler": "GPSampler"}, "torch"),
        ({"sampler": "QMCSampler"}, "scipy"),
        ({"pruner": "WilcoxonPruner"}, "scipy"),
    ],
)
def test_a_class_that_needs_another_package_names_it(part, package):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    [(name, value)] = part.items()
    message = f"^--{name}={value} needs the package {package}: pip install {package}, or choose another"
    with pytest.raises(ValueError, match=message):
        rehearse(**part)


@pytest.mark.unit
def test_a_sampler_that_cannot_propose_the_fields_is_refused(recwarn):
    with pytest.raises(ValueError, match=r"^--sampler=BruteForceSampler cannot be used for this sweep: FloatDistrib"):
        rehearse(sampler="BruteForceSampler")
    for sampler in ("RandomSampler", "TPESampler", "NSGAIIISampler"):
        rehearse(sampler=sampler, pruner="MedianPruner")
    assert not recwarn.list


def test_a_dry_run_tells_how_many_runs_are_proposed(tmp_path):
    words = ["--config=digits", "--suggest=7", "--set=learning_rate.peak=log(1e-3,1)", f"--workdir={tmp_path}/sweep"]
    assert sweep(*words, "--dry-run") == f"7 runs that Optuna proposes in {tmp_path}/sweep; none is started.\n"
