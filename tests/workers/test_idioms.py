"""What scripts do with Keras besides fit, under tfdist.run: the numbers of Keras."""

import functools
import itertools
import json
import sys

import pytest
from launching import REPOSITORY, python

sys.path.insert(0, str(REPOSITORY))

from tests.scripts.field import trial

NAMES = (
    *("compute_loss_of_the_object", "numbers_with_weights", "rows_of_predict_step", "all_parts_of_a_batch"),
    *("values_under_new_names", "metric_in_compute_loss", "shuffle_within_batches", "batches_of_numbers"),
    *("none_for_weights", "numbers_of_predict_step", "outputs_of_other_lengths", "stopped_at_the_begin"),
    *("stopped_evaluations_and_predictions", "results_under_new_names", "repeated_trainings"),
)


@functools.cache
def printed(*words):
    """The numbers that the script prints, started by these words of a command line."""
    return json.loads(python(*words, "tests/scripts/idioms.py", *NAMES, timeout=900).stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "devices"), [*itertools.product(NAMES, (1, 2))])
def test_the_number_is_that_of_keras(name, devices):
    found = printed("-m", "tfdist.run", f"--logical_devices={devices}")
    assert trial.difference(printed()[name], found[name]) < 1e-5
