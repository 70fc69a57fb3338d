"""`tfdist why` trains both runs again, and names the step, the example and the cause; here of one changed pixel."""

import pathlib
import sys

import forked
import pytest
from launching import worker_environment

from tests.benchmark import planted_causes

CASES = {f"{case.kind}: {case.name}": case for case in planted_causes.CASES}


@pytest.mark.slow
def test_one_pixel_of_one_example_is_named(tmp_path):
    lab = tmp_path / "lab"
    planted_causes.make_lab(lab)
    planted_causes.changed_data(33, "image")(lab)
    command = [sys.executable, "-m", "tfdist.main", "--config=my_config.py", "--config.train.steps=12"]
    env = worker_environment(PYTHONPATH=str(planted_causes.REPOSITORY), **{forked.OPTIMIZE: "1"})
    for name, data in (("a", "digits.npz"), ("b", "other.npz")):
        options = [f"--workdir={tmp_path / name}", f"--config.data.source.path={data}"]
        done = forked.run([*command, *options], cwd=lab, env=env, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr.decode()
    for name in "ab":
        planted_causes.thin(tmp_path / name, 12)
    why = [sys.executable, "-m", "tfdist", "why", "a", "b"]
    done = forked.run(why, cwd=tmp_path, env=env, capture_output=True, timeout=600)
    text = done.stdout.decode()
    assert done.returncode == 1, text + done.stderr.decode()
    assert "The first step that differs is one of 1 to 12." in text
    assert (
        "Equal up to step 10; in step 11 what the source returns differs: `image` of example 33 (1 of 64 values; at "
        "[3, 4, 0] 5 in A, 4 in B)."
    ) in text
    assert "cause: config    data.source.path: A 'digits.npz'; B 'other.npz'" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["changed line of prepare: from epoch 1", "flipped bit in a checkpoint: a weight"])
def test_a_planted_cause_is_named(name, tmp_path: pathlib.Path):
    exact, _, cause, text = planted_causes.try_case(CASES[name], tmp_path, {})
    assert exact and cause, text
