"""`tfdist why`: the first report at which two runs differ, and the recorded facts that differ."""

import io

import numpy as np

from tfdist.report import reporter
from tfdist.tools.saved_runs.same_bits import chain, first_difference, replay, why

RUN = {"chief": True, "rank": 0, "num_replicas": 1, "total_steps": 40, "steps_per_epoch": 10}
CONFIG = {"seed": 0, "report": {"verbose": False}, "data": {"batch_size": 64}}
ENVIRONMENT = {
    "config": CONFIG,
    "code": {"my_lab.py": "aa"},
    "versions": {"keras": "3.15.1"},
    "git": {"commit": "c", "changed": False},
    "processor": "P",
    "threads": {"cores": 2, "in an op": 0},
    "onednn": {"enabled": True, "reason": "measured"},
    "replicas": {"all": 1, "workers": 1},
}


def write(workdir, *starts):
    """Writes the records of starts: (step, environment, hashes of the data, {step: hash})."""
    for step, environment, data, states in starts:
        report = reporter.open_report(workdir, **RUN, resume_step=step, stream=io.StringIO())
        report.environment(environment)
        report.data(data)
        for place, value in states:
            report.state(place, value, "farmhash64", [0, 64 * place])
        report.close()
    return workdir


def run(capsys, first, second):
    code = why.compare(str(first), str(second), replay=False)
    return code, capsys.readouterr().out.splitlines()[2:]


def test_equal_runs_are_equal_and_fields_without_effect_are_no_cause(tmp_path, capsys):
    first = write(tmp_path / "a", (0, ENVIRONMENT, {"image": "x"}, [(0, "00"), (10, "01"), (20, "02")]))
    other = ENVIRONMENT | {"config": CONFIG | {"report": {"verbose": True}}, "onednn": {"enabled": True, "reason": "b"}}
    second = write(tmp_path / "b", (0, other, {"image": "x"}, [(0, "00"), (10, "01")]))
    code, lines = run(capsys, first, second)
    assert code == 0
    assert lines[0] == ("Equal: the states after all 2 common reports, up to step 10; A ends at step 20, B at step 10.")
    assert lines[1].startswith("Nothing that was recorded and can change a state differs")
    assert lines[2:] == ["differ, too, and change no state: config.report.verbose"]


def test_the_first_report_that_differs_and_the_causes_are_named(tmp_path, capsys):
    first = write(tmp_path / "a", (0, ENVIRONMENT, {"image": "x"}, [(0, "00"), (10, "01"), (20, "02"), (30, "03")]))
    moved = ENVIRONMENT | {"replicas": {"all": 2, "workers": 1}, "code": {"my_lab.py": "bb"}}
    second = write(
        tmp_path / "b",
        (0, ENVIRONMENT | {"config": CONFIG | {"seed": 1}}, {"image": "y"}, [(0, "00"), (10, "01"), (20, "09")]),
        (10, moved | {"config": CONFIG | {"seed": 1}}, {"image": "y"}, [(10, "01"), (20, "07"), (30, "08")]),
    )
    code, lines = run(capsys, first, second)
    assert code == 1
    assert lines == [
        "Equal up to step 10; the states after step 20 differ. The first step that differs is one of 11 to 20.",
        "config    seed: A 0; B 1",
        "code      my_lab.py: A 'aa'; B 'aa', 'bb' from step 10 on",
        "data      image: A 'x'; B 'y'",
        "replicas  replicas.all: A 1; B 1, 2 from step 10 on",
    ]


def test_a_state_that_changes_without_a_step_is_named(tmp_path, capsys):
    first = write(tmp_path / "a", (0, ENVIRONMENT, {}, [(0, "00"), (10, "01"), (20, "02")]))
    second = write(tmp_path / "b", (0, ENVIRONMENT, {}, [(0, "00"), (10, "01"), (10, "05"), (20, "06")]))
    assert chain.first_different(*map(chain.read, (first, second))) == 10
    code, lines = run(capsys, first, second)
    assert code == 1 and lines[0] == (
        "Equal up to step 10; after it, without a step, the state changed in B: by a restored checkpoint, an "
        "evaluation or a callback."
    )


def test_a_state_that_only_one_run_recorded_twice_is_no_difference(tmp_path, capsys):
    first = write(tmp_path / "a", (0, ENVIRONMENT, {}, [(0, "00"), (10, "01"), (20, "02")]))
    second = write(tmp_path / "b", (0, ENVIRONMENT, {}, [(0, "00"), (10, "01"), (10, "05"), (20, "02")]))
    code, lines = run(capsys, first, second)
    assert code == 0 and lines[0] == "Equal: the states after all 3 common reports, up to step 20."


def test_a_directory_without_hashes_is_refused(tmp_path, capsys):
    assert why.compare(str(tmp_path), str(tmp_path), replay=True) == 2
    assert "has no run: it has no metrics.jsonl" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text('{"kind": "start", "step": 0}\n')
    assert why.compare(str(tmp_path), str(tmp_path), replay=True) == 2
    assert "has no hashes of states: give the workdir of a run" in capsys.readouterr().err


def test_runs_that_cannot_be_built_again_are_compared_by_their_records(tmp_path, capsys):
    first = write(tmp_path / "a", (0, ENVIRONMENT, {}, [(0, "00"), (10, "01")]))
    second = write(tmp_path / "b", (0, ENVIRONMENT, {}, [(0, "00"), (10, "02")]))
    assert why.compare(str(first), str(second), replay=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "trained again, side by side, from the start to step 10"
    assert lines[4].startswith("They could not be trained again: ") and "is of a script" in lines[4]


def test_the_newest_checkpoint_of_a_common_state_is_used(tmp_path):
    runs = []
    for name, hashes, kept in (("a", ("01", "02", "03"), (10, 30)), ("b", ("01", "02", "04"), (20, 30))):
        states = [(0, "00"), *zip((10, 20, 30), hashes, strict=True)]
        runs.append(chain.read(write(tmp_path / name, (0, ENVIRONMENT, {}, states))))
        for step in kept:
            (tmp_path / name / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    found = first_difference.find_interval(*runs)
    assert (found.first, found.different, found.last) == (20, 30, 30)
    assert found.checkpoints == (tmp_path / "b/checkpoints/step-00000020",) * 2
    assert first_difference.find_interval(runs[0], runs[0]) is None


def test_a_flipped_bit_of_a_variable_is_named():
    trained = {"kernel": np.ones([2, 3], np.float32), "bias": np.zeros(3, np.float32)}
    saved = {name: value.copy() for name, value in trained.items()}
    assert replay.describe_arrays(trained, saved) == "no variable differs"
    saved["kernel"].view(np.int32)[1, 2] ^= 1 << 9
    assert replay.describe_arrays(trained, saved) == "1 of 2 variables differ: kernel (element [1, 2], 1 bit of 32)"
    saved["bias"][:2] = 1.0
    text = replay.describe_arrays(trained, saved)
    assert text.endswith("kernel (element [1, 2], 1 bit of 32), bias (2 of 3 elements)")


def test_a_later_start_with_another_config_is_a_task_of_its_own(tmp_path):
    config = CONFIG | {"model": {"target": "my_lab:model"}, "train": {"steps": 40, "virtual_replicas": None}}
    other = config | {"data": {"batch_size": 32}}
    environments = [ENVIRONMENT | {"config": one} for one in (config, config, other)]
    starts = [
        (0, environments[0], {}, [(0, "00"), (10, "01"), (20, "02")]),
        (20, environments[1], {}, [(20, "02"), (30, "03")]),
        (30, environments[2], {}, [(30, "03"), (40, "04")]),
    ]
    run = chain.read(write(tmp_path / "a", *starts))
    interval = first_difference.Interval(first=0, checkpoints=(None, None), different=40, last=40)
    tasks = first_difference.tasks_of([run, run], 0, interval, tmp_path / "scratch")
    assert [(task.first, task.config["data"]["batch_size"]) for task in tasks] == [(0, 64), (30, 32)]
    changed = (20, {"config": config | {"seed": 5}, "threads.in an op": 3})
    tasks = first_difference.tasks_of([run, run], 0, interval, tmp_path / "scratch", changed)
    assert [(task.first, task.config["seed"], task.threads) for task in tasks[1:]] == [(20, 5, 3)]
