"""Scripts after Keras' public examples: under tfdist.run, unchanged, they train as under Keras on one device."""

import functools
import importlib.util
import json
import os
import pathlib
import signal
import sys

import numpy as np
import processes
import pytest
from launching import REPOSITORY, run_all, worker_environment
from topologies import environments

RUN_EACH = REPOSITORY / "tests/scripts/examples/run_each.py"
# In these nothing is drawn at random on a replica, and the data is not shuffled.
EXACT = ("simclr", "ocr_ctc", "seq2seq_transformer")
# These draw random numbers in their steps.
DRAWING = ("vae", "dcgan", "conditional_gan", "diffusion", "masked_autoencoder", "mixup", "wgan_gp")
# Epochs that are compared, if not two.
EPOCHS_OF_EQUAL_DRAWS = {"mixup": 1}
# Workers, and devices of each.
TOPOLOGIES = {"one device": (1, 1), "two devices": (1, 2), "two workers": (2, 1)}
# As EXACT, with keras-hub.
HUB = ("causal_lm", "text_classifier")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(how, names, options of run_each.py) -> name -> history and weights; how: "keras" or a topology of tfdist.run."""

    @functools.cache
    def results(
        how: str, names: tuple[str, ...] = (*EXACT, *DRAWING), *options: str
    ) -> dict[str, tuple[dict, list[np.ndarray]]]:
        out = tmp_path_factory.mktemp("examples")
        workers, devices = TOPOLOGIES.get(how, (1, 1))
        launcher = [] if how == "keras" else ["-m", "tfdist.run", f"--logical_devices={devices}"]
        line = [sys.executable, *launcher, str(RUN_EACH), str(out), *options, *names]
        paths = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
        where = [worker_environment()] if how == "keras" else environments(workers)
        run_all([line] * workers, [env | paths for env in where], timeout=3000.0, cwd=out)
        return {name: read(out, name) for name in (text.partition(":")[0] for text in names)}

    return results


def read(out: pathlib.Path, name: str) -> tuple[dict, list[np.ndarray]]:
    """What run_each.py wrote."""
    with np.load(out / f"{name}.npz") as file:
        return json.loads((out / f"{name}.json").read_text()), [file[key] for key in file.files]


def assert_close(first, second):
    """Histories and weights agree to 1e-5, relative to values above 1."""
    (history, weights), (expected, expected_weights) = first, second
    assert list(history) == list(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-5, atol=1e-5, err_msg=key)
    for one, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_numbers_are_those_of_keras_on_one_device(found, topology, name):
    assert_close(found(topology)[name], found("keras")[name])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs keras-hub: pip install 'tfdist[hub]'")
@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_tasks_of_keras_hub_train_as_they_are(found, topology, name):
    assert_close(found(topology, HUB)[name], found("keras", HUB)[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_with_the_same_random_numbers_the_numbers_are_those_of_keras(found, topology, name):
    names = tuple(f"{one}:{EPOCHS_OF_EQUAL_DRAWS.get(one, 2)}" for one in DRAWING)
    assert_close(found(topology, names, "--same_draws")[name], found("keras", names, "--same_draws")[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWING)
def test_two_devices_and_two_workers_draw_the_same_numbers(found, name):
    assert_close(found("two devices")[name], found("two workers")[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *DRAWING])
def test_two_workers_killed_in_the_second_epoch_resume_to_the_same_bits(found, tmp_path, name):
    options = ["-m", "tfdist.run", f"--workdir={tmp_path / 'runs'}", str(RUN_EACH), str(tmp_path)]
    paths = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}

    def start(*names):
        where = [env | paths for env in environments(2)]
        return processes.run([[sys.executable, *options, *names]] * 2, where, timeout=3000.0, cwd=tmp_path)

    codes, outputs = start("--kill", name)
    # The other worker may notice before its own end.
    assert -signal.SIGKILL in codes and set(codes) <= {-signal.SIGKILL, 76}, outputs
    assert (tmp_path / "runs" / "fit1").exists() and not (tmp_path / f"{name}.npz").exists()
    codes, outputs = start(name)
    assert codes == [0, 0], outputs
    (history, weights), (expected, expected_weights) = read(tmp_path, name), found("two workers", (name,))[name]
    assert history == expected
    for one, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(one, other)
