"""AlexNet, and the line."""

import numpy as np
import pytest
from launching import run_all, worker_environment
from topologies import command, records

from tfdist.configs.networks import classic


@pytest.mark.slow
def test_alexnet_has_the_size_of_its_layers_and_both_forms_are_one_network():
    kernels = 121 * 3 * 96 + 25 * 96 * 256 + 9 * 256 * 384 + 9 * 384 * 384 + 9 * 384 * 256
    channels = 96 + 256 + 384 + 384 + 256
    dense = (6 * 6 * 256 + 1) * 4096 + 4097 * 4096 + 4097 * 10
    assert classic.alexnet().count_params() == kernels + channels + 4 * channels + dense == 58_327_818
    functional, sequential = (classic.alexnet(input_shape=(67, 67, 3), form=form) for form in classic.FORMS)
    sequential.set_weights(functional.get_weights())
    images = np.random.default_rng(0).random((2, 67, 67, 3), np.float32)
    np.testing.assert_array_equal(functional(images), sequential(images))


@pytest.mark.slow
def test_the_line_goes_where_gradient_descent_takes_it(tmp_path):
    batch = ["--config.data.batch_size=64", "--config.train.steps=20"]
    run_all([command(tmp_path, *batch, config="configs/line.py")], [worker_environment()])
    steps = records(tmp_path, "train")
    points = classic.points("train").read(np.arange(64))
    x, y = (np.asarray(points[name], np.float64)[:, 0] for name in ("x", "y"))
    m, n = -1.0, 2.0
    assert len(steps) == 20
    for step in steps:
        error = m * x + n - y
        np.testing.assert_allclose([step["m"], step["n"], step["loss"]], [m, n, np.mean(error**2)], rtol=1e-4)
        m, n = m - 0.1 * np.mean(2 * error * x), n - 0.1 * np.mean(2 * error)
