"""The quick network for CIFAR-10: its sizes, its whitening layer, and its two optimizers against NumPy."""

import keras
import launching
import numpy as np
import pytest
import small_runs
import tensorflow as tf
import topologies

from tfdist.configs.networks import airbench, optimizers
from tfdist.data import order
from tfdist.training.step.updates import work_sharing
from tfdist.zoo import schedules


def reader(images):
    """Returns a function that hands out the first n of `images`, as `config.adapt` gets one."""
    return lambda count: {"image": tf.constant(images[:count])}


def test_network_has_the_size_of_its_original_and_starts_as_the_identity():
    model = airbench.network()
    kernels = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    assert sum(v.numpy().size for v in model.trainable_variables) == 24 + kernels + 2 * (64 + 256 + 256) + 2560
    # Its convolutions start as the identity.
    model = airbench.network(widths=(24, 32, 16), activation="relu")
    inputs = np.random.default_rng(0).normal(size=(2, 5, 5, 24)).astype(np.float32)
    outputs = model.get_layer("block1_1_conv")(inputs).numpy()
    np.testing.assert_array_equal(outputs[..., :24], inputs)
    assert np.abs(model.get_layer("block2_1_conv").kernel.numpy()[..., 24:]).max() > 0


def test_whitened_patches_are_uncorrelated_and_of_variance_one():
    images = np.cumsum(np.random.default_rng(0).normal(size=(40, 32, 32, 3)), axis=2).astype(np.float32)
    model = airbench.network(widths=(8, 8, 8))
    airbench.whiten(model, reader(images), num_examples=40, epsilon=0.0)
    layer = model.get_layer(airbench.WHITENING)
    outputs = layer(images).numpy().reshape(-1, 24).astype(np.float64)
    np.testing.assert_allclose(outputs[:, :12].T @ outputs[:, :12] / len(outputs), np.eye(12), atol=2e-3)
    np.testing.assert_array_equal(layer.kernel.numpy()[..., 12:], -layer.kernel.numpy()[..., :12])
    assert [v.name for v in layer.trainable_variables] == ["bias"]


def test_images_are_windows_of_their_reflection_and_mirrored_the_other_way_round_in_the_next_epoch():
    images, ids = np.random.default_rng(2).integers(0, 256, (500, 4, 5, 3)).astype(np.uint8), np.arange(500)
    plain, mirrored = [], []
    for epoch in (0, 1, 2, 7):
        seeds = order.seeds(tf.constant(ids), tf.constant(epoch, tf.int64), seed=3)
        found = airbench.crop_and_flip({"image": tf.constant(images)}, seeds, training=True, pad=0)["image"].numpy()
        mirrored.append((found == images[:, :, ::-1]).all(axis=(1, 2, 3)))
        assert ((found == images).all(axis=(1, 2, 3)) ^ mirrored[-1]).all()
        cropped = airbench.crop_and_flip({"image": tf.constant(images)}, seeds, training=True, pad=2)["image"].numpy()
        plain.append(np.where(mirrored[-1][:, None, None, None], cropped[:, :, ::-1], cropped))
    assert 200 < mirrored[0].sum() < 300
    for later, same in ((1, False), (2, True), (3, False)):
        np.testing.assert_array_equal(mirrored[later], mirrored[0] if same else ~mirrored[0])
    padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)], mode="reflect")
    windows = [padded[:, top : top + 4, left : left + 5] for top in range(5) for left in range(5)]
    matches = np.array([(window == plain[0]).all(axis=(1, 2, 3)) for window in windows])
    assert matches.any(axis=0).all() and matches.any(axis=1).all()


def test_lookahead_sgd_is_its_formula():
    steps, rate, momentum, decay, interval = 7, 0.1, 0.9, 0.5, 3
    schedule = schedules.constant(rate, total_steps=steps)
    optimizer = optimizers.lookahead_sgd(
        schedule, momentum=momentum, weight_decay=0.02, offset_rate=4.0, interval=interval, decay=decay
    )
    kernel = keras.Variable([1.0, -2.0], name="kernel")
    with keras.name_scope("norm"):
        beta = keras.Variable([0.5], name="beta")
    optimizer.build([kernel, beta])
    gradients = np.random.default_rng(0).normal(size=(steps, 3)).astype(np.float32)
    weights, factors = np.array([1.0, -2.0, 0.5]), np.array([1.0, 1.0, 4.0])
    velocity, average = np.zeros(3), weights.copy()
    for step, gradient in enumerate(gradients, 1):
        optimizer.apply([tf.constant(gradient[:2]), tf.constant(gradient[2:])], [kernel, beta])
        weights -= rate * 0.02 * weights
        velocity = momentum * velocity - rate * factors * gradient
        weights += momentum * velocity - rate * factors * gradient
        if step % interval == 0:
            share = decay**interval * (step / steps) ** 3
            average = share * average + (1 - share) * weights
            weights = average.copy()
        np.testing.assert_allclose([*kernel.numpy(), *beta.numpy()], weights, rtol=1e-5)


@pytest.mark.workers
def test_averages_start_from_the_weights_with_which_training_starts(tmp_path, own_process):
    """Those of Keras' use_ema: tests/unit/training/test_step.py."""
    optimizer = {"target": "tfdist.configs.networks.optimizers:lookahead_sgd"}
    run = small_runs.start(tmp_path, adapt={"target": "lab:fill", "value": 0.25}, optimizer=optimizer)
    variables = run.variables
    averages = {name: value.numpy() for name, value in variables.items() if "average" in name}
    assert sorted(value.shape for value in averages.values()) == [(10,), (64, 10)]
    for value in averages.values():
        np.testing.assert_array_equal(value, np.full_like(value, 0.25))


@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (1, 2, 2, 6)], ids=["tall", "wide"])
def test_muon_moves_kernels_by_orthogonal_matrices(shape):
    rate, momentum = 0.1, 0.6
    optimizer = optimizers.muon(schedules.constant(rate, total_steps=3), momentum=momentum, iterations=30)
    random = np.random.default_rng(0)
    kernel = keras.Variable(random.normal(size=shape), name="kernel")
    optimizer.build([kernel])
    velocity = np.zeros(shape)
    for _ in range(3):
        before, gradient = kernel.numpy(), random.normal(size=shape)
        optimizer.apply([tf.constant(gradient, tf.float32)], [kernel])
        velocity = momentum * velocity + gradient
        left, _, right = np.linalg.svd((gradient + momentum * velocity).reshape(-1, shape[-1]), full_matrices=False)
        scaled = before * np.sqrt(shape[-1]) / np.linalg.norm(before)
        moved = ((scaled - kernel.numpy()) / rate).reshape(-1, shape[-1])
        # The polynomial leaves singular values between 0.68 and 1.13, and the singular vectors as they are.
        values = left.T @ moved @ right.T
        assert np.all((np.diag(values) > 0.67) & (np.diag(values) < 1.14))
        np.testing.assert_allclose(values, np.diag(np.diag(values)), atol=1e-3)


def test_work_is_shared_evenly():
    assert work_sharing.assign([1, 5, 2, 3], 2) == [0, 0, 1, 1]
    assert work_sharing.assign([1.0], 3) == [0]


def test_muon_moves_other_weights_by_sgd():
    schedule = schedules.constant(0.1, total_steps=3)
    optimizer = optimizers.muon(schedule, other_rate=3.0, other_momentum=0.5, offset_rate=4.0, weight_decay=0.02)
    reference = [keras.optimizers.SGD(0.1 * factor, 0.5, nesterov=True) for factor in (3.0, 12.0)]
    with keras.name_scope("norm"):
        weights = [keras.Variable([[1.0, -2.0]], name="kernel"), keras.Variable([0.5], name="beta")]
        expected = [keras.Variable(weight, name="expected") for weight in weights]
    for gradients in np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32):
        gradients = [tf.constant(gradients[None, :2]), tf.constant(gradients[2:])]
        optimizer.apply(gradients, weights)
        for sgd, gradient, variable in zip(reference, gradients, expected, strict=True):
            variable.assign(variable * (1 - 0.1 * 0.02))
            sgd.apply([gradient], [variable])
    for weight, variable in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, variable, rtol=1e-5)


@pytest.mark.slow
def test_adapted_run_is_the_same_on_two_workers_with_unlike_processors(tmp_path):
    source = {"target": "tfdist.zoo.sources:synthetic", "num_examples": 96, "num_test_examples": 32}
    flags = [f"--config.data.source={source}", "--config.data.batch_size=32", "--config.data.evaluation_batch_size=32"]
    flags += ["--config.model.widths=(8, 8, 8)", "--config.model.group_size=16"]
    flags += ["--config.train.epochs=none", "--config.train.steps=5", "--config.report.tensorboard=false"]
    for workers in (1, 2):
        line = topologies.command(tmp_path / str(workers), *flags, config="configs/cifar_fast.py")
        environments = topologies.environments(workers)
        # The kernels of another processor multiply matrices: the last bits differ from the first worker's.
        environments[-1] |= {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        launching.run_all([line] * workers, environments)
    alone, two = (topologies.arrays(tmp_path / name, step=5) for name in "12")
    assert topologies.largest_difference(alone, two) < 1e-5
    whitening = alone[f"model/{airbench.WHITENING}/kernel"]
    assert np.abs(whitening[..., :12] + whitening[..., 12:]).max() == 0 and np.abs(whitening).max() > 0
