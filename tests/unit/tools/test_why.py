"""`tfdist why`: the first report at which two runs differ, and the recorded facts that differ."""

import io

from tfdist.report import reporter
from tfdist.tools.saved_runs.same_bits import chain, why

RUN = {"chief": True, "rank": 0, "num_replicas": 1, "total_steps": 40, "steps_per_epoch": 10, "tensorboard": False}
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
    code = why.main(["why", str(first), str(second)])
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
    assert chain.read(second).changed_between_steps() == [10]
    code, lines = run(capsys, first, second)
    assert code == 1 and lines[0].startswith("Equal up to step 0; the states after step 10 differ.")
    assert lines[1] == "In B the state changed after step 10 without a step: by an evaluation or a callback."


def test_a_directory_without_hashes_is_refused(tmp_path, capsys):
    assert why.main(["why", str(tmp_path), str(tmp_path)]) == 2
    assert "has no hashes of states: give the workdir of a run" in capsys.readouterr().err
