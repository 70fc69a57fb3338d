"""Random numbers without a seed: repeated by a resumed run, or else found in the traced step."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except
from small_runs import start

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.data import guard
from tfdist.training import execution
from tfdist.training import run as run_lib
from tfdist.training.step import multi_step, train_step

NOISY = {"objective": {"target": "lab:noisy"}}
NOISE = {"model": {"target": "lab:noise"}}


@pytest.fixture(autouse=True)
def restored(own_signals):
    yield
    keras.utils.clear_session()


def steps(run: run_lib.Run, first: int, last: int, step=train_step.train_step) -> dict[str, np.ndarray]:
    """Runs the steps [first, last); returns all variables."""
    iterator = run.cluster.distribute(run.feed.training(first, max(last, 1)))
    call = multi_step.make_multi_step_fn(run.context, functools.partial(step, run.context), trains=True)
    call(iterator, tf.constant(last - first, tf.int32), tf.zeros([], tf.float64))
    return checkpoint_format.snapshot(run.variables)


@pytest.mark.workers
@pytest.mark.parametrize(
    "parts", slow_except([NOISY, NOISE, NOISY | {"train": c.Train(steps=20, micro_batches=2)}], [NOISY])
)
def test_a_resumed_run_draws_what_an_uninterrupted_one_draws(tmp_path, parts):
    whole = steps(start(tmp_path, **parts), 0, 6)
    half = steps(start(tmp_path, **parts), 0, 3)
    resumed = start(tmp_path, **parts)
    for name, variable in resumed.variables.items():
        checkpoint_format.tf_variable(variable).assign(half[name])
    found = steps(resumed, 3, 6)
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert np.abs(half["model/logits/kernel"] - whole["model/logits/kernel"]).max() > 1e-3


@pytest.mark.workers
def test_each_batch_of_an_evaluation_draws_its_own_numbers(tmp_path):
    run = start(tmp_path, **NOISE)
    runner = execution.make_evaluation_runner(run)

    def losses(batches: int, *firsts: int) -> list[float]:
        iterator = run.cluster.distribute(run.feed.evaluation()[0])
        stop, count = tf.zeros([], tf.float64), tf.constant(batches)
        return [float(runner.run_steps(iterator, count, stop, tf.constant(first))[0][0]) for first in firsts]

    # The same batch under three numbers; and two batches in one execution or in two.
    assert len({losses(1, number)[0] for number in range(3)}) == 3
    assert sum(losses(1, 0, 1)) == losses(2, 0)[0]


def test_a_draw_in_a_loop_is_found_with_its_line(tmp_path, capsys):
    run = start(tmp_path, objective={"target": "lab:noisy", "looped": True})
    words = r"^(tfdist: WARNING: )?The training step draws .* is not saved: \S+ \(While\) at \S*/lab\.py:\d+: "

    def train(**options) -> None:
        guard.begin(guard.Guarded(**options))
        execution.make_train_runner(run).execute(run.cluster.distribute(run.feed.training(0, 2)), 2)

    train(saved=False)
    assert len(re.findall(words, capsys.readouterr().err, re.MULTILINE)) == 1
    for options in ({"saved": True}, {"saved": False, "several_workers": True, "is_script": True}):
        with pytest.raises(ValueError, match=words):
            train(**options)
    guard.begin(guard.Guarded())
