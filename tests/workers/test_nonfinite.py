"""What is not finite: skipped, alike on all topologies and through interruptions, and bounded."""

import pathlib

import keras
import numpy as np
import pytest
import topologies
from launching import REPOSITORY
from parameters import slow

from tfdist import config as c
from tfdist.config import load
from tfdist.training import execution, loop, setup

# The examples of tests/configs/same_run.py come in their own order here, 48 a step: those of steps 5, 6 and 7.
ITERATION = f"optimizer/{'SGD' if keras.__version__.startswith(('3.12', '3.13', '3.14')) else 'sgd'}/iteration"
OF_STEPS = {5: 200, 6: 250, 7: 300}
MODEL = {"target": "tests.support.lab:synchronised", "num_classes": 10}
# Where statistics of batches do not matter: it is traced in half of the time.
LINEAR = {"target": "tests.support.lab:linear", "num_classes": 10}
pytestmark = pytest.mark.usefixtures("own_process")


def options(*steps: int, nonfinite: str) -> list[str]:
    """A run of 20 steps that saves after each 4, with one example that is NaN in each of `steps`."""
    examples = [OF_STEPS[step] for step in steps]
    return [
        f"--config.model={MODEL}",
        f"--config.data.prepare={{'target': 'tests.support.lab:with_nan', 'examples': {examples}, "
        "'scale': 0.0625, 'pad': 1, 'flip': True}",
        *("--config.data.shuffle=false", "--config.checkpoint.every.steps=4", "--config.checkpoint.keep=9"),
        *("--config.evaluation.every.steps=none", "--config.checkpoint.export=false"),
        f"--config.train.nonfinite={nonfinite}",
    ]


def config(nonfinite: str, *steps: int, limit: int = 10) -> c.Config:
    words = options(*steps, nonfinite=nonfinite)
    return load.load(str(REPOSITORY / topologies.SAME_RUN), [*words, f"--config.train.nonfinite_limit={limit}"])


def run(workdir: pathlib.Path, made: c.Config) -> None:
    """Trains in this process."""
    keras.utils.clear_session()
    assert loop.train(setup.build_run(made, workdir)) == 0


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    """The workdir of a run that has skipped step 7."""
    workdir = tmp_path_factory.mktemp("skipped")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        run(workdir, config("skip", 7, limit=1))
    return workdir


def test_a_skipped_step_leaves_no_trace_but_that_it_was_made(skipped):
    before, after, end = (topologies.arrays(skipped, step) for step in (4, 8, 20))
    assert all(np.isfinite(array).all() for array in end.values())
    assert any("moving_variance" in name for name in end)
    assert [arrays[ITERATION] for arrays in (before, after, end)] == [4, 8, 20]
    lines = topologies.records(skipped, "train")
    assert [line["skipped"] for line in lines] == [0] * 6 + [1] * 14
    # A report every step: the mean over no examples is None, all others are numbers.
    assert [line["step"] for line in lines if line["loss"] is None] == [7]
    events = [line["text"] for line in topologies.records(skipped, "event") if "WARNING" in line["text"]]
    assert len(events) == 1 and "in step 7. Skipped: 1 updates in all, of at most 1" in events[0]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(1, 2), (2, 1)])
def test_a_step_is_skipped_alike_on_any_topology(skipped, tmp_path, workers, devices):
    topologies.train(tmp_path, *options(7, nonfinite="skip"), workers=workers, devices=devices)
    assert topologies.largest_difference(topologies.arrays(skipped), topologies.arrays(tmp_path)) < 1e-5
    assert topologies.records(tmp_path, "train")[-1]["skipped"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("newest", [4, 8])
def test_a_run_that_skips_is_killed_and_resumed_to_the_same_bits(skipped, tmp_path, newest):
    copy = topologies.cut_back(skipped, tmp_path / "run", newest)
    run(copy, config("skip", 7, limit=1))
    topologies.assert_same_bits(topologies.arrays(copy), topologies.arrays(skipped))
    ours, theirs = (topologies.records(workdir, "train") for workdir in (copy, skipped))
    assert [(line["step"], line["skipped"]) for line in ours] == [(line["step"], line["skipped"]) for line in theirs]


@pytest.mark.slow
def test_after_so_many_times_the_run_ends(tmp_path):
    words = r"3 updates, .*nonfinite_limit=2, .* step 7, image\[0, 0, 0\] .* example 300 .* of step 4 is kept"
    with pytest.raises(execution.DivergedError, match=words):
        run(tmp_path / "skip", config("skip", 5, 6, 7, limit=2))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_steps_are_skipped_in_half_precision(tmp_path, precision):
    made = config("skip", 5, 7)
    made.train.precision, made.train.steps = precision, 8
    made.model = dict(LINEAR)
    if precision == "bfloat16":  # In float16, the network's rectifiers make 0 of NaN.
        made.model = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "normalization": "sync_batch"}
    run(tmp_path, made)
    assert topologies.records(tmp_path, "train")[-1]["skipped"] == 2
    end = topologies.arrays(tmp_path, 8)
    assert all(np.isfinite(array.astype(np.float32)).all() for array in end.values())


@pytest.mark.slow
def test_a_gradient_that_no_scale_of_the_loss_makes_finite_ends_the_run(tmp_path):
    made = config("stop")
    made.model = dict(LINEAR)
    made.data.prepare = {"target": "tests.support.lab:with_epoch"}
    made.objective = {"target": "tests.support.lab:bad_gradient_from_epoch", "epoch": 0}
    made.train.precision = "float16"
    with pytest.raises(execution.DivergedError, match=r"The loss or a gradient is not finite in step 16\."):
        run(tmp_path, made)


@pytest.mark.parametrize("objective", ["nan_from_epoch", slow("bad_gradient_from_epoch")])
def test_either_a_loss_or_a_gradient_that_is_not_finite_is_enough(tmp_path, objective):
    made = config("skip")
    made.model = dict(LINEAR)
    made.data.prepare = {"target": "tests.support.lab:with_epoch"}
    made.data.batch_size = 480  # 3 steps an epoch.
    made.objective = {"target": f"tests.support.lab:{objective}", "epoch": 1}
    made.train.steps = 6
    run(tmp_path, made)
    assert topologies.records(tmp_path, "train")[-1]["skipped"] == 3
    before, after = (topologies.arrays(tmp_path, step) for step in (4, 6))
    assert after.pop(ITERATION) == 6 and before.pop(ITERATION) == 4
    topologies.assert_same_bits(before, after)


@pytest.mark.slow
def test_gradients_of_float64_that_float32_cannot_hold_are_finite(tmp_path):
    made = config("skip")
    made.model = {"target": "tests.support.lab:synchronised", "num_classes": 10}
    made.objective = {"target": "tests.support.lab:steep"}
    made.train.clip_norm, made.learning_rate.peak, made.train.steps = None, 1e-30, 1
    run(tmp_path, made)
    assert topologies.records(tmp_path, "train")[-1]["skipped"] == 0
    assert np.abs(topologies.arrays(tmp_path, 1)["model/logits/kernel"]).max() > 1e6
