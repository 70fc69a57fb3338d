"""TF_DETERMINISTIC_OPS=1, which README names for GPUs, trains: TensorFlow then rejects some ops."""

import pytest
import topologies
from launching import run_all, train_command, worker_environment

pytestmark = pytest.mark.workers


@pytest.mark.slow
def test_deterministic_ops_train_to_the_same_bits(tmp_path):
    options = ("--config.train.steps=3", "--config.data.evaluation_split=none", "--config.checkpoint.best_metric=none")
    commands = [train_command(tmp_path / name, *options) for name in "ab"]
    run_all(commands, [worker_environment(TF_DETERMINISTIC_OPS="1")] * 2, timeout=1800.0)
    topologies.assert_same_bits(*(topologies.arrays(tmp_path / name, 3) for name in "ab"))
