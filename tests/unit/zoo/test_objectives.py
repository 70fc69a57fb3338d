"""Objectives: the numbers against NumPy, one value per example, and clear refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.configs.networks import airbench
from tfdist.zoo.objectives import classification, regression

LOGITS = np.random.default_rng(0).normal(0.0, 3.0, (6, 7)).astype(np.float32)
LABELS = np.array([0, 6, 3, 3, 1, 5], np.int64)


def model(outputs):
    """A model that returns what it is given, and notes whether it was called for training."""

    def call(inputs, training):
        call.training = training
        return tf.convert_to_tensor(outputs)

    return call


def batch(labels, **other):
    return {"image": tf.zeros([len(labels), 2]), "label": tf.convert_to_tensor(labels), **other}


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("labels", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_classification_with_integer_labels_is_computed_in_float32(labels, dtype):
    logits = tf.cast(LOGITS * 30, dtype)
    values = classification(model(logits), batch(LABELS.astype(labels)), training=True)
    assert list(values) == ["loss", "accuracy"]
    assert all(value.dtype == tf.float32 and value.shape == (6,) for value in values.values())
    exact = -log_softmax(tf.cast(logits, tf.float64).numpy())[range(6), LABELS]
    np.testing.assert_allclose(values["loss"], exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values["accuracy"], (LOGITS.argmax(-1) == LABELS).astype(np.float32))


def test_label_smoothing_equals_keras_and_is_for_training_alone():
    values = classification(model(LOGITS), batch(LABELS), training=True, label_smoothing=0.1)
    expected = keras.losses.categorical_crossentropy(np.eye(7)[LABELS], LOGITS, from_logits=True, label_smoothing=0.1)
    np.testing.assert_allclose(values["loss"], expected, rtol=1e-5)
    smoothed = classification(model(LOGITS), batch(LABELS), training=False, label_smoothing=0.1)
    plain = classification(model(LOGITS), batch(LABELS), training=False)
    np.testing.assert_array_equal(smoothed["loss"], plain["loss"])


def test_top5():
    values = classification(model(LOGITS), batch(LABELS), training=False, top5=True)
    expected = [label in row.argsort()[-5:] for row, label in zip(LOGITS, LABELS, strict=True)]
    assert 0 < sum(expected) < 6
    np.testing.assert_array_equal(values["top5"], np.float32(expected))
    ties = classification(model(np.zeros((6, 7), np.float32)), batch(LABELS), training=False, top5=True)
    np.testing.assert_array_equal(ties["top5"], np.float32(LABELS < 5))


@pytest.mark.parametrize("loss", ["mse", "mae"])
@pytest.mark.parametrize("outputs, targets", [((5, 3, 2), (5, 3, 2)), ((5, 1), (5,)), ((5,), (5,)), ((5, 1), (5, 1))])
def test_regression(loss, outputs, targets):
    random = np.random.default_rng(0)
    output, target = random.normal(size=outputs).astype(np.float32), random.normal(size=targets)
    values = regression(
        model(output), {"inputs": tf.zeros([5]), "targets": tf.constant(target)}, training=True, loss=loss
    )
    error = (output - target.reshape(outputs)).reshape(5, -1)
    assert list(values) == ["loss", "mse", "mae"]
    assert all(value.dtype == tf.float32 and value.shape == (5,) for value in values.values())
    np.testing.assert_allclose(values["mse"], (error**2).mean(-1), rtol=1e-5)
    np.testing.assert_allclose(values["mae"], np.abs(error).mean(-1), rtol=1e-5)
    np.testing.assert_array_equal(values["loss"], values[loss])


@pytest.mark.parametrize(
    "outputs, labels, arguments, words",
    [
        (LOGITS, LABELS, {"labels": "digit"}, r"batch\['digit'\].* image, label"),
        (LOGITS[:, :4], LABELS, {"top5": True}, r"top5 .* \(6, 4\)"),
        (LOGITS[:, 0], LABELS, {}, r"\(6,\)"),
        (LOGITS, LABELS[:, None], {}, r"int64 \(6, 1\)"),
        (LOGITS, np.eye(7)[LABELS], {}, r"float64 \(6, 7\).*categorical_crossentropy"),
        (LOGITS, LABELS.astype(str), {}, r"string \(6,\)"),
    ],
)
def test_classification_refuses(outputs, labels, arguments, words):
    with pytest.raises(ValueError, match=words):
        classification(model(outputs), batch(labels), training=True, **arguments)


def test_a_model_for_other_shapes_is_refused_in_one_line():
    data = {"image": tf.zeros([2, 4, 4, 1]), "label": tf.zeros([2], tf.int64)}
    layers = [keras.layers.Flatten(), keras.layers.Reshape((5, 5))]
    with pytest.raises(ValueError, match=r"\(4, 4, 1\): .*\(5, 5\)"):
        classification(keras.Sequential(layers), data, training=False)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_views_of_an_image_count_alike_in_evaluation_alone(shift):
    """A mirrored one, and those shifted to two corners."""
    images = np.random.default_rng(1).normal(size=(6, 4, 5, 3)).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=(60, 7)).astype(np.float32)

    def linear(inputs, training):
        return tf.reshape(inputs, [6, 60]) @ weights

    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    views = [images, images, padded[:, :4, :5], padded[:, 2:, 2:]] if shift else [images]
    logits = np.mean([each.reshape(6, 60) @ weights for v in views for each in (v, v[:, :, ::-1])], axis=0)
    received = {"label": tf.constant(LABELS), "image": tf.constant(images)}
    options = {"mirror": True, "shift": shift}
    found = airbench.classification(linear, received, training=False, **options)["loss"]
    np.testing.assert_allclose(found, -log_softmax(logits)[range(6), LABELS], rtol=1e-4)
    plain = classification(linear, received, training=True)["loss"]
    np.testing.assert_allclose(airbench.classification(linear, received, training=True, **options)["loss"], plain)
