"""`tfdist.step` and `tfdist.batches`: loops of one's own give on several replicas what they give alone."""

import functools
import signal
import sys

import processes
import pytest
from launching import REPOSITORY
from parameters import slow_except

sys.path.insert(0, str(REPOSITORY))

from tests.scripts.field import trial
from tfdist.keras_fit.own_step import own_loop

# The step, of four in a pass, in which a start is killed.
KILLED = 10
LOOPS = ("classifier", "gan", "policy", "autoencoder", "mean_teacher")


def run(folder, name, way, *words):
    """What the script has done; `way`: as in `trial.run`."""
    words = ("--plain", *words) if way == "keras" else words
    return trial.run(REPOSITORY / "tests/scripts/loops" / f"{name}.py", way, *words, folder=folder)


ROWS = [*((name, "two workers") for name in LOOPS), ("classifier", "two devices")]


@pytest.mark.parametrize(("name", "way"), slow_except(ROWS, [("classifier", "two devices")]))
def test_two_replicas_make_the_steps_of_one_process_without_tfdist(tmp_path, name, way):
    plain, ours = processes.at_once(*(functools.partial(run, tmp_path / one, name, one) for one in ("keras", way)))
    assert not any(ours.codes), ours.outputs
    assert all(len(found) == 1 and trial.difference(plain.found[0], found) < 2e-5 for found in ours.found)


@pytest.mark.slow
def test_a_loop_that_saves_itself_resumes_after_a_kill_to_the_same_bits(tmp_path):
    def save(folder, *words):
        return run(folder, "classifier", "two workers", "--saves=saved", *words)

    whole, killed = processes.at_once(
        lambda: save(tmp_path / "whole"), lambda: save(tmp_path / "resumed", f"--fail_at={KILLED}")
    )
    assert [len(found["losses"]) for (found,) in whole.found] == [12, 12], whole.outputs
    assert -signal.SIGKILL in killed.codes and 0 not in killed.codes and killed.found == [[], []], killed.outputs
    rest = save(tmp_path / "resumed")
    assert rest.codes == [0, 0] and rest.found == [
        [found | {"losses": found["losses"][8:], "accuracies": found["accuracies"][2:]}] for (found,) in whole.found
    ], rest.outputs


def test_a_method_that_is_decorated_in_its_class_is_refused():
    def train(self, batch):
        return self, batch

    with pytest.raises(ValueError, match=r"self\.train = tfdist\.step\(self\.train\)"):
        own_loop.step(train)


def test_a_loop_without_these_lines_is_told_where_to_read(tmp_path):
    (tmp_path / "loop.py").write_text(
        "import keras, tensorflow as tf\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "optimizer = keras.optimizers.SGD(0.1)\n"
        "with tf.GradientTape() as tape:\n    loss = tf.reduce_mean(model(tf.ones([4, 2])) ** 2)\n"
        "optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)\n"
    )
    ours = trial.run(tmp_path / "loop.py", "two devices")
    assert ours.codes == [0] and ours.outputs[0].count("tfdist.step and tfdist.batches distribute it") == 1, ours
