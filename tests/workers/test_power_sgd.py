"""`config.communication.compression`: PowerSGD on one and several replicas, its errors, and resumed runs."""

import pathlib
import runpy

import keras
import numpy as np
import pytest
import topologies
from launching import REPOSITORY, run_all

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.training import loop, setup

CONFIG = "tests/configs/power_sgd.py"
ERRORS = "replicas/compression/"
# Step 7 has the example 300, which is NaN.
NAN = {"target": "tests.support.lab:with_nan", "examples": [300], "scale": 1 / 16}
pytestmark = pytest.mark.usefixtures("own_process", "graph_optimizers")


def config(**changes) -> c.Config:
    """The config of these tests; `changes` replaces fields: `train__steps` is `train.steps`."""
    made = runpy.run_path(str(REPOSITORY / CONFIG))["get_config"]()
    for path, value in changes.items():
        *sections, field = path.split("__")
        holder = made
        for one in sections:
            holder = getattr(holder, one)
        setattr(holder, field, value)
    return made


def run(workdir: pathlib.Path, made: c.Config) -> dict[str, np.ndarray]:
    """Trains on one replica, in this process; returns every array of the last checkpoint."""
    keras.utils.clear_session()
    assert loop.train(setup.build_run(made, workdir)) == 0
    return topologies.arrays(workdir, made.train.steps)


def summed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint, with the errors summed over replicas."""
    return {name: array.astype(float).sum(0) if name.startswith(ERRORS) else array for name, array in arrays.items()}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The workdir of a run on two devices of one worker."""
    workdir = tmp_path_factory.mktemp("two")
    topologies.train(workdir, devices=2, config=CONFIG)
    return workdir


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    """The workdir of a run on one replica."""
    workdir = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        run(workdir, config())
    return workdir


def test_two_replicas_make_the_run_of_one(on_one, on_two):
    one, two = (topologies.arrays(workdir) for workdir in (on_one, on_two))
    assert two[f"{ERRORS}dense1/kernel"].shape == (2, 64, 32)
    assert one[f"{ERRORS}dense1/kernel"].shape == (1, 64, 32)
    # The replicas have seen other examples, so their errors differ.
    assert np.abs(np.diff(two[f"{ERRORS}dense1/kernel"], axis=0)).max() > 1e-3
    assert topologies.largest_difference(summed(one), summed(two)) < 1e-3
    weights = [{name: array for name, array in found.items() if "model/" in name} for found in (one, two)]
    assert topologies.largest_difference(*weights) < 2e-5
    (note,) = [line for line in topologies.records(on_two, "warning") if "compression" in line["text"]]
    assert "a step sends 2 of 4 gradients as factors" in note["text"]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(2, 1), (2, 2)])
def test_two_workers_have_the_bits_of_two_devices(on_two, tmp_path, workers, devices):
    topologies.train(tmp_path, workers=workers, devices=devices, config=CONFIG)
    found = topologies.arrays(tmp_path)
    if devices == 1:
        assert topologies.largest_difference(topologies.arrays(on_two), found) == 0
    else:
        assert topologies.largest_difference(summed(topologies.arrays(on_two)), summed(found)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["AVX2", "SSE41"])
def test_workers_with_unlike_processors_stay_equal(on_two, tmp_path, instructions):
    variables = topologies.environments(2)
    variables[1]["ONEDNN_MAX_CPU_ISA"] = instructions
    line = topologies.command(tmp_path, "--config.consistency.every.steps=1", config=CONFIG)
    run_all([line] * 2, variables)  # The replicas are compared after each step: a difference ends the run.
    assert topologies.largest_difference(summed(topologies.arrays(on_two)), summed(topologies.arrays(tmp_path))) < 1e-2


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(on_two, tmp_path):
    copy = topologies.cut_back(on_two, tmp_path / "run")
    topologies.train(copy, devices=2, config=CONFIG)
    assert topologies.largest_difference(topologies.arrays(on_two), topologies.arrays(copy)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_resume_on_another_number_of_replicas_keeps_the_sum_of_the_errors(on_two, tmp_path, devices):
    copy = topologies.cut_back(on_two, tmp_path / "run")
    topologies.train(copy, devices=devices, config=CONFIG)
    expected = summed(topologies.arrays(on_two))
    assert topologies.largest_difference(expected, summed(topologies.arrays(copy))) < 1e-3
    # Without the errors it would be another run.
    lost = topologies.cut_back(on_two, tmp_path / "lost")
    saved = checkpoint_format.verify(lost / "checkpoints" / "step-00000010")
    kept = {name: array * (not name.startswith(ERRORS)) for name, array in topologies.arrays(lost, 10).items()}
    checkpoint_format.write(lost / "checkpoints", 10, kept, saved.state)
    assert topologies.largest_difference(expected, summed(run(lost, config()))) > 0.01


def total(arrays: dict[str, np.ndarray], name: str, rate: float) -> np.ndarray:
    """What has been applied to a weight and is still to be applied: the sum of all gradients, times -rate."""
    left = arrays.get(f"{ERRORS}{name}")
    weight = arrays[f"model/{name}"].astype(float)
    return weight if left is None else weight - rate * left.astype(float).sum(0)


CASES = {
    "plain": {},
    "skip": {"train__nonfinite": "skip", "data__prepare": NAN},
    "float16": {"train__precision": "float16"},
    "bfloat16 on the wire": {"communication__dtype": "bfloat16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_the_update_and_the_errors_sum_to_the_gradients(tmp_path, name):
    options = {
        "model": {"target": "tests.support.lab:linear", "num_classes": 10},
        "objective": {"target": "tests.support.lab:pulled"},
        "optimizer": {"target": "keras.optimizers:SGD"},
        "data__shuffle": False,
        "train__clip_norm": None,
        **CASES[name],
    }
    compressed = run(tmp_path / "compressed", config(**options))
    exact = run(tmp_path / "exact", config(**options, communication__compression__rank=None))
    error = compressed[f"{ERRORS}logits/kernel"]
    assert np.isfinite(error).all() and np.abs(error).max() > 0.01
    assert not any(key.startswith(ERRORS) for key in exact)
    found, expected = (total(arrays, "logits/kernel", 0.05) for arrays in (compressed, exact))
    assert np.abs(compressed["model/logits/kernel"] - exact["model/logits/kernel"]).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_gradients_of_low_rank_are_exact(tmp_path):
    # That of a dense layer has at most as many independent columns as the batch has examples. Over many steps rounding
    # grows: an error has other columns than the next gradient.
    options = {"data__batch_size": 2, "communication__compression__exact_steps": 0, "train__steps": 1}
    compressed = run(tmp_path / "compressed", config(**options))
    exact = run(tmp_path / "exact", config(**options, communication__compression__rank=None))
    assert topologies.largest_difference(exact, {name: compressed[name] for name in exact}) < 1e-6
    for name in (f"{ERRORS}dense1/kernel", f"{ERRORS}logits/kernel"):
        assert np.abs(compressed[name]).max() < 1e-6
