"""What a loop of one's own saves after each pass, and what a later start restores after the passes that it skips."""

import contextlib
import sys
import types

import pytest
import tensorflow as tf

from tfdist.keras_fit.own_step import own_loop, saved_passes

ALONE = types.SimpleNamespace(
    num_workers=1,
    is_chief=True,
    monitor=types.SimpleNamespace(pause_timers=contextlib.nullcontext),
    barrier=lambda: None,
    broadcast_bytes=bytes,
)


class Step:
    """A step with one weight, whose metrics have one number."""

    __name__ = "train"

    def __init__(self):
        self.made_for, self.variables, self.metrics = "", {}, [0.0]
        self.objective = types.SimpleNamespace(state=lambda: self.metrics, restore_state=self._restore)

    def _restore(self, values):
        self.metrics = values

    def make(self, cluster, batch):
        self.made_for, self.variables = batch, {"model/w": tf.Variable(0.0)}

    def train(self, value):
        self.variables["model/w"].assign(value)
        self.metrics = [10.0 * value]


def opened(workdir):
    step = Step()
    return step, saved_passes.Place.open(ALONE, workdir, [step])


@pytest.fixture
def workdir(tmp_path):
    """Of a loop that has finished three passes, and was stopped in the fourth, after five steps."""
    step, place = opened(tmp_path)
    for number in range(3):
        assert place.begin_pass(ALONE, "spec", list) == 0
        if not number:
            step.make(ALONE, "spec")
        step.train(float(number + 1))
        place.save(ALONE, 0, finished=True)
    assert place.begin_pass(ALONE, "spec", list) == 0
    step.train(4.0)
    place.save(ALONE, 5)
    return tmp_path


def test_after_each_pass_that_is_skipped_its_values_are_there(workdir):
    for _ in range(2):  # Nothing is lost by a start.
        step, place = opened(workdir)
        for number in range(4):
            first = place.begin_pass(ALONE, "spec", lambda: "spec")
            assert first == (5 if number == 3 else sys.maxsize)
            assert float(step.variables["model/w"]) == number + 1 and step.metrics == [10.0 * (number + 1)]
    step.train(5.0)
    place.save(ALONE, 0, finished=True)
    step, place = opened(workdir)
    assert [place.begin_pass(ALONE, "spec", lambda: "spec") for _ in range(5)] == [sys.maxsize] * 4 + [0]
    assert float(step.variables["model/w"]) == 5.0


def test_a_damaged_checkpoint_of_a_pass_is_refused(workdir):
    _, second, *_ = sorted(workdir.glob("checkpoints/step-????????"))
    (second / "manifest.json").write_text("{}")
    _, place = opened(workdir)
    place.begin_pass(ALONE, "spec", lambda: "spec")
    with pytest.raises(ValueError, match=second.name):
        place.begin_pass(ALONE, "spec", lambda: "spec")


def test_a_step_that_takes_other_batches_now_gets_its_values_when_it_is_called(workdir):
    step, place = opened(workdir)
    for _ in range(4):
        place.begin_pass(ALONE, "another spec", pytest.fail)
    step.make(ALONE, "another spec")
    place.restore_rest(ALONE, step)
    assert float(step.variables["model/w"]) == 4.0 and step.metrics == [40.0]


def test_a_pass_that_is_left_is_refused(tmp_path):
    step, place = opened(tmp_path)
    step.make(ALONE, "spec")
    place.begin_pass(ALONE, "spec", lambda: "spec")
    with pytest.raises(ValueError, match=r"pass 1 .*workdir="):
        place.begin_pass(ALONE, "spec", lambda: "spec")


def test_a_method_that_is_decorated_in_its_class_is_refused():
    def train(self, batch):
        return self, batch

    with pytest.raises(ValueError, match=r"self\.train = tfdist\.step\(self\.train\)"):
        own_loop.step(train)
