"""One step on several replicas: penalties, dropout, statistics, the objective's contract, and no retracing."""

import itertools
import json

import keras
import numpy as np
import probes
import pytest
import tensorflow as tf
import topologies
from small_runs import start, train

from tfdist import config as c
from tfdist.training.evaluation import saved_checkpoint
from tfdist.training.step.layers import normalization

NAMES = ("statistics", "masks", "traces")
SYNCHRONISED = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "normalization": "sync_batch"}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What one process has measured."""
    return probes.measure(tmp_path_factory.mktemp("two"), *NAMES, devices=2)[0]


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


def test_masked_examples_do_not_count_in_synchronised_statistics():
    layer, mask = keras.layers.BatchNormalization(synchronized=True), np.array([[1, 0, 1], [0, 1, 0]], bool)
    x = np.random.default_rng(0).normal(3.0, 2.0, (2, 3, 4)).astype(np.float32)
    layer.build(x.shape)
    moments = normalization._global_moments(layer, tf.constant(x), tf.constant(mask))
    for found, expected in zip(moments, (x[mask].mean(axis=0), x[mask].var(axis=0)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.workers
def test_dropout_differs_between_replicas_steps_and_layers(two):
    found = np.stack(
        [two[f"masks/{replica}"] for replica in "01"]
    )  # [replicas, steps, examples, features of two layers]
    assert set(np.unique(found)) == {0.0, 2.0} and found.shape[:2] == (2, 3)
    masks = [part for mask in found.reshape(6, *found.shape[2:]) for part in np.split(mask > 0, 2, axis=-1)]
    bound = 5 * 0.5 / masks[0].size ** 0.5
    assert all(abs(mask.mean() - 0.5) < bound for mask in masks)
    for first, second in itertools.combinations(masks, 2):  # Independent masks agree in half of their places.
        assert abs(np.mean(first == second) - 0.5) < bound


@pytest.mark.workers
def test_nothing_is_traced_twice(two):
    measured = {key.removeprefix("traces/"): value for key, value in two.items() if key.startswith("traces/")}
    assert measured["train"] == measured["evaluation"] == 1
    # Functions of the config too; for training that was done before, to learn the shapes. The start describes a batch,
    # which is prepared as for evaluation.
    assert measured["prepared for train"] == 0 and measured["prepared for eval"] == 2
    # Boundaries at multiples of 3, 4 and 5 up to 20, and six evaluations.
    train_calls, evaluation_calls = measured["calls"]
    assert train_calls >= 12 and evaluation_calls >= 5


@pytest.mark.workers
def test_a_run_with_averages_reports_keeps_and_exports_them(tmp_path, capsys):
    parts = {
        "optimizer": {"target": "keras.optimizers:SGD", "use_ema": True, "ema_momentum": 0.75},
        "learning_rate": c.LearningRate(peak=0.1),
        "train": c.Train(steps=6, call_seconds=1e-6),
        "evaluation": c.Evaluation(every=c.Every(steps=2)),
        "checkpoint": c.Checkpoint(every=c.Every(steps=2), best_metric="loss", best_mode="min"),
    }
    train(tmp_path, **parts)
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
    ("changes", "message"),
    [
        ({"objective": {"target": "lab:column"}}, r"'error' has shape \(2, 1\) for a batch of 2 examples"),
        ({"objective": {"target": "lab:bare_loss"}}, r'must return a dict with a "loss"\. Received: \w*Tensor'),
        ({"objective": {"target": "lab:renamed", "name": "regularization"}}, "'regularization', a name"),
        ({"objective": {"target": "lab:renamed", "name": "epoch"}}, r"'epoch', a name that metrics\.jsonl uses"),
        # The forward pass communicates.
        ({"model": SYNCHRONISED, "train": c.Train(steps=20, xla=True)}, r"config\.train\.xla=True"),
    ],
)
def test_what_a_step_cannot_do_is_refused_before_training(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_an_objective_must_return_the_same_in_training_and_evaluation(tmp_path):
    run = start(tmp_path, objective={"target": "lab:changing"})
    with pytest.raises(ValueError, match=r"in training and evaluation.* accuracy"):
        probes.run_steps(run, 1)


@pytest.mark.workers
def test_a_penalty_counts_once_in_micro_batches(tmp_path):
    def trained(parts):
        kinds = {"train": c.Train(steps=2, micro_batches=parts), "learning_rate": c.LearningRate(peak=0.1)}
        run = train(tmp_path / f"{parts}", model={"target": "lab:linear", "num_classes": 10, "l2": 0.3}, **kinds)
        return run.context.model.get_layer("logits").kernel.numpy()

    np.testing.assert_allclose(trained(2), trained(1), atol=1e-6)
