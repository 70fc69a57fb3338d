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
    "change_of_weights_from_zero",
    "metric_in_a_branch",
    "gradients_of_the_graph",
    "result_where_it_is_updated",
    "loss_of_the_batch_in_a_map",
    "loss_of_the_batch_in_a_branch",
)
ON_ONE_REPLICA = {"newton": "tf.GradientTape.jacobian", "hessian_of_the_graph": "tf.hessians"}
REFUSED = ON_ONE_REPLICA | {"product_of_the_hessian": "tf.autodiff.ForwardAccumulator"}
ON_TWO_REPLICAS = ("-m", "tfdist.run", "--logical_devices=2")
NAMES = {
    (): (*EQUAL, *ON_ONE_REPLICA),
    ("-m", "tfdist.run"): ON_ONE_REPLICA,
    ON_TWO_REPLICAS: (*EQUAL, *REFUSED),
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
def test_derivatives_by_other_ways_are_refused_on_several_replicas(name):
    ours, output = found(*ON_TWO_REPLICAS)
    assert name in ours, output
    assert REFUSED[name] in ours[name] and "gradients_in_step.py:" in ours[name]
