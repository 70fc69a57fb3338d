"""One step on several replicas: penalties, dropout, statistics, the objective's contract, and no retracing."""

import json
import pathlib
import sys

import forked
import keras
import numpy as np
import probes
import pytest
import tensorflow as tf
import topologies
from launching import REPOSITORY, worker_environment

from tfdist import config as c
from tfdist.training import loop, setup
from tfdist.training import run as run_lib
from tfdist.training.evaluation import saved_checkpoint

# Each takes seconds of tracing. A name that ends in ":1" is measured on one replica, all others on two.
NAMES = ("statistics", "masks", "traces")
NAMES += ("synchronised/masked", "synchronised/masked:1")
SLOW = (
    "regularization/1",
    "regularization/2",
    "regularization/1:1",
    "regularization/2:1",
    "masks_of_a_second_run",
    "traces:1",
    "averages",
)
SLOW += (
    "synchronised/whole",
    "synchronised/whole:1",
    "synchronised/pieces",
    "synchronised/pieces:1",
    "masks",
    "masks_of_micro_batches",
)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What one process has measured."""
    return probes.measure(tmp_path_factory.mktemp("two"), *NAMES, devices=2)[0]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """As `two`, of the slow probes."""
    return probes.measure(tmp_path_factory.mktemp("slow"), *SLOW, devices=2)[0]


@pytest.mark.slow
@pytest.mark.workers
@pytest.mark.parametrize(("pieces", "on"), [(2, ""), (1, ""), (1, ":1"), (2, ":1")])
def test_a_penalty_counts_once_on_any_number_of_replicas_and_pieces(slow, pieces, on):
    """By default tests/workers/test_same_run.py compares the losses of a network with a penalty."""
    before, after = (slow[f"regularization/{pieces}{on}/{w}/model/logits/kernel"] for w in ("before", "after"))
    # The gradient of 0.05 x the sum of squares is 0.1 x the weight; the rate is 1.
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(after, 0.9 * before, rtol=1e-6)
    penalty = 0.05 * np.sum(before.astype(np.float64) ** 2)
    np.testing.assert_allclose(slow[f"regularization/{pieces}{on}/reported"], penalty, rtol=1e-6)


@pytest.mark.workers
def test_unsynchronised_statistics_are_the_mean_of_the_replicas_own(two):
    images = two["statistics/images"].astype(np.float64)
    assert images.shape == (3, 2, probes.BATCH // 2, 64)
    mean, variance = np.zeros(64), np.ones(64)
    for step in images:
        mean = 0.9 * mean + 0.1 * np.mean([replica.mean(axis=0) for replica in step], axis=0)
        variance = 0.9 * variance + 0.1 * np.mean([replica.var(axis=0) for replica in step], axis=0)
    # Not those of the whole batch: its variance is larger by that of the replicas' means.
    whole = np.ones(64)
    for step in images.reshape(3, probes.BATCH, 64):
        whole = 0.9 * whole + 0.1 * step.var(axis=0)
    assert np.abs(whole - variance).max() > 1e-4
    for name, expected in (("mean", mean), ("variance", variance)):
        found = two[f"statistics/{name}"]
        assert found.shape == (2, 64)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(two["statistics/saved mean"], two["statistics/mean"][0])


@pytest.mark.workers
@pytest.mark.parametrize(
    ("fixture", "name"),
    [("two", "masked"), *(pytest.param("slow", name, marks=pytest.mark.slow) for name in ("whole", "pieces"))],
)
def test_synchronised_statistics_are_those_of_all_replicas_with_masks_too(request, fixture, name):
    measured = request.getfixturevalue(fixture)
    keys = [key.removeprefix(f"synchronised/{name}/") for key in measured if key.startswith(f"synchronised/{name}/")]
    assert "model/norm/moving_variance" in keys and len(keys) == 6
    for key in keys:
        two, one = (measured[f"synchronised/{name}{on}/{key}"] for on in ("", ":1"))
        np.testing.assert_allclose(two, one, rtol=1e-7, atol=1e-8, err_msg=key)


@pytest.mark.slow
@pytest.mark.workers
def test_synchronised_statistics_of_pieces_or_with_a_mask_are_not_of_the_whole(two, slow):
    whole = slow["synchronised/whole/model/norm/moving_mean"]
    for measured, name in ((slow, "pieces"), (two, "masked")):
        assert np.abs(measured[f"synchronised/{name}/model/norm/moving_mean"] - whole).max() > 1e-4


# A script on three replicas.
COUNTED = """
import numpy as np
import keras, tfdist
from tests.support import lab
from tfdist import config as c
cluster = tfdist.connect(c.ClusterOptions(logical_devices=3, connect_seconds=240.0))
with cluster.scope():
    model = lab.counted(2, (3,))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
tfdist.fit(cluster, model, np.ones((36, 3), "float32"), np.zeros(36, "int32"), batch_size=3, epochs=1, verbose=0)
print("counted", float(model.get_layer("steps").count.numpy()))
"""


@pytest.mark.workers
def test_a_statistic_in_float64_is_averaged_in_float64(tmp_path):
    """A third went through float32, in configs and in scripts: 12.000000357627869."""
    options = ("--config.train.steps=12", "--config.checkpoint.every.steps=12")
    options += ("--config.learning_rate.warmup_epochs=0", "--config.model={'target': 'tests.support.lab:counted'}")
    topologies.train(tmp_path, *options, devices=3, config="tests/configs/interrupted.py")
    assert topologies.arrays(tmp_path, 12)["model/steps/count"] == 12.0
    command = [sys.executable, "-c", COUNTED]
    done = forked.run(command, env=worker_environment(), cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert "counted 12.0\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.workers
def test_averages_are_evaluated_and_the_weights_come_back(slow):
    average = slow["averages/1"]  # As in Keras, they start after the first step.
    for step in "23":
        average = 0.75 * average + 0.25 * slow[f"averages/{step}"]
    for found, expected in ((slow["averages/evaluated"], average), (slow["averages/after"], slow["averages/3"])):
        assert found.shape == (2, *average.shape)
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)
        np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(average - slow["averages/3"]).max() > 1e-3


def all_masks(measured, probe="masks"):
    """Every mask of a run by itself: (replica, step, layer) -> bool [examples, features]."""
    found = {}
    for replica in ("0", "1"):
        values = measured[f"{probe}/{replica}"]
        assert set(np.unique(values)) == {0.0, 2.0}
        for index, both in enumerate(values):
            for layer, mask in enumerate(np.split(both > 0, 2, axis=-1)):
                found[replica, index, layer] = mask
    return found


@pytest.mark.workers
@pytest.mark.parametrize(
    ("fixture", "probe", "pieces"),
    [("two", "masks", 1), pytest.param("slow", "masks_of_micro_batches", 2, marks=pytest.mark.slow)],
)
def test_dropout_differs_between_replicas_steps_layers_and_micro_batches(request, fixture, probe, pieces):
    masks = all_masks(request.getfixturevalue(fixture), probe)
    assert len(masks) == 2 * 3 * pieces * 2
    size = probes.BATCH // 2 // pieces * 64
    names = list(masks)
    for i, first in enumerate(names):
        assert masks[first].shape == (probes.BATCH // 2 // pieces, 64)
        assert abs(masks[first].mean() - 0.5) < 5 * 0.5 / size**0.5
        for second in names[:i]:
            # Independent masks agree in half of their places.
            agreement = np.mean(masks[first] == masks[second])
            assert abs(agreement - 0.5) < 5 * 0.5 / size**0.5, (first, second)


@pytest.mark.slow
@pytest.mark.workers
def test_dropout_is_the_same_in_a_second_run_of_the_process(two, slow):
    for replica in ("0", "1"):
        for name in ("masks", "masks_of_a_second_run"):
            np.testing.assert_array_equal(two[f"masks/{replica}"], slow[f"{name}/{replica}"])


@pytest.mark.slow
@pytest.mark.workers
def test_dropout_is_the_same_in_a_repeated_run_on_two_workers(two, tmp_path):
    workers = probes.measure(tmp_path, "masks", workers=2)
    for rank, worker in enumerate(workers):
        assert list(worker) == [f"masks/{rank}"]
        np.testing.assert_array_equal(worker[f"masks/{rank}"], two[f"masks/{rank}"])


@pytest.mark.workers
@pytest.mark.parametrize(
    ("fixture", "on"), [("two", ""), pytest.param("slow", ":1", marks=pytest.mark.slow)], ids=["two", "one"]
)
def test_nothing_is_traced_twice(request, fixture, on):
    measured = {
        key.partition("/")[2]: value
        for key, value in request.getfixturevalue(fixture).items()
        if key.startswith(f"traces{on}/")
    }
    assert measured["train"] == measured["evaluation"] == 1
    # Functions of the config too; for training that was done before, to learn the shapes. The start describes a batch,
    # which is prepared as for evaluation.
    assert measured["prepared for train"] == 0 and measured["prepared for eval"] == 2
    # Boundaries at multiples of 3, 4 and 5 up to 20, and six evaluations.
    train_calls, evaluation_calls = measured["calls"]
    assert train_calls >= 12 and evaluation_calls >= 5


def start(workdir: pathlib.Path, **changes) -> run_lib.Run:
    """Makes a run in this process, on one device."""
    keras.utils.clear_session()
    parts = {"model": {"target": "lab:linear", "num_classes": 10}, "train": c.Train(steps=20)}
    return setup.build_run(c.Config(**parts | changes), workdir)


@pytest.mark.workers
def test_a_run_with_averages_reports_keeps_and_exports_them(tmp_path, capsys):
    parts = {
        "optimizer": {"target": "keras.optimizers:SGD", "use_ema": True, "ema_momentum": 0.75},
        "learning_rate": c.LearningRate(peak=0.1),
        "train": c.Train(steps=6, call_seconds=1e-6),
        "evaluation": c.Evaluation(every=c.Every(steps=2)),
        "checkpoint": c.Checkpoint(every=c.Every(steps=2), best_metric="loss", best_mode="min"),
        "report": c.Report(tensorboard=False),
    }
    assert loop.train(start(tmp_path, **parts)) == 0
    reported = {line["step"]: line["loss"] for line in topologies.records(tmp_path, "evaluation")}
    best = min(reported, key=reported.get)
    assert saved_checkpoint.evaluate_only(start(tmp_path, **parts), "best") == 0
    evaluated = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert evaluated["step"] == best and evaluated["loss"] == reported[best]
    saved = topologies.arrays(tmp_path, step=6)
    exported = keras.models.load_model(tmp_path / "model.keras").get_layer("logits").kernel.numpy()
    (average,) = [value for name, value in saved.items() if name.endswith("kernel_average")]
    np.testing.assert_array_equal(exported, average)
    assert np.abs(exported - saved["model/logits/kernel"]).max() > 1e-4


@pytest.mark.slow
@pytest.mark.workers
def test_a_changed_learning_rate_is_used_after_a_resume(tmp_path, capsys):
    for peak, steps in ((0.5, 2), (0.125, 4)):
        rate = c.LearningRate(peak=peak, schedule={"target": "tfdist.zoo.schedules:settable"})
        report = c.Report(every=c.Every(steps=1), tensorboard=False)
        run = start(tmp_path, learning_rate=rate, report=report, train=c.Train(steps=steps))
        assert loop.train(run, allow_config_changes=True) == 0
    assert [line["learning_rate"] for line in topologies.records(tmp_path, "train")] == [0.5, 0.5, 0.125, 0.125]
    said = capsys.readouterr().out
    assert "changed: config.learning_rate.peak: 0.5 was saved, now 0.125" in said
    assert "learning rate 0.125, as configured now; 0.5 was configured before" in said


def test_averages_start_from_the_weights_if_the_first_step_is_skipped(tmp_path):
    optimizer = {"target": "keras.optimizers:SGD", "use_ema": True}
    context = start(tmp_path, optimizer=optimizer).context
    context.optimizer.iterations.assign(1)  # As a skipped step does.
    kernel, bias = context.model.trainable_variables
    before = kernel.numpy()
    context.optimizer.apply([tf.zeros(kernel.shape), tf.zeros(bias.shape)], [kernel, bias])
    context.optimizer.finalize_variable_values([kernel, bias])
    np.testing.assert_allclose(kernel.numpy(), before, rtol=1e-6)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            {"target": "lab:averaged"},
            r"one value per example, without averaging: 'loss' has shape \(\) for a batch",
        ),
        ({"target": "lab:column"}, r"'error' has shape \(2, 1\) for a batch of 2 examples, and should have \(2,\)"),
        ({"target": "lab:without_loss"}, r'must return a dict with a "loss"\. Received: \[\'accuracy\'\]'),
        ({"target": "lab:bare_loss"}, r'must return a dict with a "loss"\. Received: \w*Tensor'),
        ({"target": "lab:renamed", "name": "wait_seconds"}, r"returns 'wait_seconds', a name that tfdist uses itself"),
        ({"target": "lab:renamed", "name": "regularization"}, r"returns 'regularization', a name that tfdist uses"),
        ({"target": "lab:renamed", "name": "epoch"}, r"returns 'epoch', a name that metrics\.jsonl uses itself"),
        ({"target": "lab:renamed", "nam": "x"}, r"config\.objective\.nam: .* no argument 'nam'\. Did you mean 'name'"),
    ],
)
def test_an_objective_that_breaks_its_contract_is_refused_before_training(tmp_path, objective, message):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, objective=objective)
    assert list(tmp_path.iterdir()) == []


def test_xla_is_refused_where_the_forward_pass_communicates(tmp_path):
    model = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "normalization": "sync_batch"}
    with pytest.raises(
        ValueError, match=r"config\.train\.xla=True compiles no communication, and the model normalises"
    ):
        start(tmp_path, model=model, train=c.Train(steps=20, xla=True))


def test_an_objective_may_give_any_number_of_values(tmp_path):
    run = start(tmp_path, objective={"target": "lab:renamed", "name": "share_of_right_answers"})
    assert run.context.names == ("loss", "share_of_right_answers")
    run = start(tmp_path, model={"target": "lab:linear", "num_classes": 10, "l2": 0.1})
    assert run.context.names == ("loss", "accuracy", "regularization")


def test_an_objective_must_return_the_same_in_training_and_evaluation(tmp_path):
    run = start(tmp_path, objective={"target": "lab:changing"})
    message = "the same values in training and evaluation. Received only in one of them: accuracy"
    with pytest.raises(ValueError, match=message):
        probes.run_steps(run, 1)
