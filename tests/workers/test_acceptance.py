"""launch/acceptance/mnist_multi_worker.py: the acceptance test of the EESSI test suite, run by tfdist."""

import re
import sys

import numpy as np
import processes
import pytest
from topologies import environments

PROGRAM = [sys.executable, "launch/acceptance/mnist_multi_worker.py"]


@pytest.mark.slow
def test_two_workers_learn_the_digits_and_print_the_lines_that_are_checked():
    codes, outputs = processes.run([[*PROGRAM, "--batch=32", "--epochs=1", "--steps=15"]] * 2, environments(2))
    assert codes == [0, 0], outputs
    assert "Rank " not in outputs[1]
    for line in (r"Rank [0-9]+: Set TF_CONFIG for rank ([0-9]+)", r"Rank ([0-9]+): Keras fit completed"):
        assert re.findall(f"^{line}", outputs[0], re.MULTILINE) == ["0", "1"], outputs[0]
    [accuracy], [speed] = (
        re.findall(rf"^{name}:\s+(\S+)", outputs[0], re.MULTILINE) for name in ("Final accuracy", "Performance")
    )
    assert float(accuracy) > 0.2 and float(speed) > 0


@pytest.mark.slow
def test_a_network_that_cannot_learn_and_another_device_fail(tmp_path):
    blank = {f"x_{part}": np.zeros((50, 28, 28), np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(50) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "blank.npz", **blank, **labels)
    for flags, text in (
        ([f"--data={tmp_path}/blank.npz", "--batch=8", "--epochs=1", "--steps=4"], "The network has not learned"),
        (["--device=gpu"], "The devices are of type CPU, and --device=gpu."),
    ):
        codes, outputs = processes.run([[*PROGRAM, *flags]], environments(1))
        assert codes == [1] and text in outputs[0], outputs
