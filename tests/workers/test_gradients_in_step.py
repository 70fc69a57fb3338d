"""Steps of a user's own that take gradients and losses in unusual ways: as in Keras on two devices, or refused."""

import functools
import json
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment

pytestmark = pytest.mark.slow

SCRIPT = "tests/scripts/gradients_in_step.py"
EQUAL = (
    "loss_with_its_gradient",
    "sum_with_its_gradient",
    "attack_from_zero",
    "change_of_weights_from_zero",
    "sum_by_the_size_of_the_batch",
    "mean_by_the_size_of_a_tensor",
    "balanced_losses",
    "metric_in_a_branch",
    "gradients_of_the_graph",
    "averaged_and_other_gradients",
    "center_of_the_size_of_a_shard",
    "sum_kept_in_a_variable",
    "result_in_a_branch",
)
REFUSED = (
    "newton",
    "jacobian_over_the_batch",
    "loss_of_the_batch_in_a_map",
    "loss_of_the_batch_in_a_branch",
)
ON_ONE_REPLICA = {
    "hessian_of_the_graph": "tf.hessians",
    "product_of_the_hessian": "tf.autodiff.ForwardAccumulator",
    "derivative_in_a_direction": "tf.autodiff.ForwardAccumulator",
}
TOLD = {
    **{name: f"{method} does not work in a step on several replicas" for name, method in ON_ONE_REPLICA.items()},
    "result_where_it_is_updated": "The result of the metric 'seen' is computed in the tf.cond or tf.while_loop",
}


ON_TWO_REPLICAS = ("-m", "tfdist.run", "--logical_devices=2")
NAMES = {
    (): (*EQUAL, *ON_ONE_REPLICA),
    ("-m", "tfdist.run"): ON_ONE_REPLICA,
    ON_TWO_REPLICAS: (*EQUAL, *REFUSED, *TOLD, "sum_in_a_branch"),
}


@functools.cache
def found(*runner):
    """What the script prints for each step, and the output for one whose loss cannot be told."""
    line = [sys.executable, *runner, SCRIPT, *NAMES[runner]]
    done = subprocess.run(
        line, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}, done.stdout + done.stderr


@pytest.mark.parametrize("name", (*EQUAL, *ON_ONE_REPLICA))
def test_gradients_are_those_of_one_device(name):
    ours, output_of_ours = found("-m", "tfdist.run") if name in ON_ONE_REPLICA else found(*ON_TWO_REPLICAS)
    keras, output = found()
    assert name in keras, output
    assert name in ours, output_of_ours
    assert ours[name] == pytest.approx(keras[name], rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("name", REFUSED)
def test_communication_in_a_map_or_a_branch_is_refused(name):
    ours, output = found(*ON_TWO_REPLICAS)
    assert name in ours, output
    assert "Replicas cannot communicate inside a tf.cond" in ours[name]
    assert f"in {SCRIPT}:" in ours[name] or "in gradients_in_step.py:" in ours[name]


@pytest.mark.parametrize("name", TOLD)
def test_what_replicas_cannot_compute_is_refused(name):
    ours, output = found(*ON_TWO_REPLICAS)
    assert name in ours, output
    assert TOLD[name] in ours[name] and "gradients_in_step.py:" in ours[name]


def test_a_loss_of_a_branch_is_reported():
    _, output = found(*ON_TWO_REPLICAS)
    assert (
        "a loss is a number that a tf.cond, a loop, a map or a function of its own in the graph has computed" in output
    )
