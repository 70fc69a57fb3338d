"""What scripts do with Keras besides fit, under tfdist.run: the numbers of Keras."""

import functools
import json
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment
from parameters import slow_except

SCRIPT = "tests/scripts/idioms.py"
NAMES = (
    *("metric_in_compute_loss", "compute_loss_of_the_object", "shuffle_within_batches", "lists_of_inputs_on_a_batch"),
    *("batches_of_numbers", "frozen", "none_for_weights", "added_loss_alone"),
    *("rows_of_predict_step", "numbers_of_predict_step", "outputs_of_other_lengths"),
    *("stopped_at_the_begin", "stopped_evaluations_and_predictions"),
    *("all_parts_of_a_batch", "scaled_losses", "values_under_new_names"),
)


@functools.cache
def printed(*words):
    """The numbers that the script prints, started by these words of a command line."""
    line = [sys.executable, *words, SCRIPT]
    done = forked.run(line, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("devices", slow_except([1, 2], [2]))
@pytest.mark.parametrize("name", NAMES)
def test_the_number_is_that_of_keras(name, devices):
    assert printed("-m", "tfdist.run", f"--logical_devices={devices}")[name] == pytest.approx(printed()[name], rel=1e-5)
