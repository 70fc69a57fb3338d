"""What scripts do with Keras besides fit, under tfdist.run: the numbers of Keras."""

import functools
import itertools
import json
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment
from parameters import slow_except

SCRIPT = "tests/scripts/idioms.py"
# Each takes seconds of tracing; of those that resemble others, or take longest, the slow tests have the numbers.
QUICK = ("compute_loss_of_the_object", "numbers_with_weights", "rows_of_predict_step")
SLOW = ("all_parts_of_a_batch", "values_under_new_names")
SLOW += ("metric_in_compute_loss", "lists_of_inputs_on_a_batch")
SLOW += ("shuffle_within_batches", "batches_of_numbers", "none_for_weights", "numbers_of_predict_step")
SLOW += ("outputs_of_other_lengths", "stopped_at_the_begin", "stopped_evaluations_and_predictions")
SLOW += ("results_under_new_names", "repeated_trainings")


@functools.cache
def printed(names, *words):
    """The numbers of these names that the script prints, started by these words of a command line."""
    line = [sys.executable, *words, SCRIPT, *names]
    done = forked.run(line, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "devices"), slow_except(itertools.product((*QUICK, *SLOW), (1, 2)), [(name, 2) for name in QUICK])
)
def test_the_number_is_that_of_keras(name, devices):
    names = QUICK if name in QUICK else SLOW
    found = printed(names, "-m", "tfdist.run", f"--logical_devices={devices}")
    assert found.keys() == set(names) and found[name] == pytest.approx(printed(names)[name], rel=1e-5)
