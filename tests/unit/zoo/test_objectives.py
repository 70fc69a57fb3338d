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


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_classification_with_integer_labels(dtype):
    values = classification(model(LOGITS), batch(LABELS.astype(dtype)), training=True)
    assert list(values) == ["loss", "accuracy"]
    assert all(value.dtype == tf.float32 and value.shape == (6,) for value in values.values())
    np.testing.assert_allclose(values["loss"], -log_softmax(LOGITS)[range(6), LABELS], rtol=1e-5)
    np.testing.assert_array_equal(values["accuracy"], (LOGITS.argmax(-1) == LABELS).astype(np.float32))


def test_classification_with_distributions():
    mixed = (
        np.float32(0.7) * np.eye(7, dtype=np.float32)[LABELS] + np.float32(0.3) * np.eye(7, dtype=np.float32)[[2] * 6]
    )
    values = classification(model(LOGITS), batch(mixed), training=True)
    np.testing.assert_allclose(values["loss"], -(mixed * log_softmax(LOGITS)).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(values["accuracy"], (LOGITS.argmax(-1) == LABELS).astype(np.float32))


def test_one_hot_distributions_equal_integers():
    one_hot = classification(model(LOGITS), batch(np.eye(7)[LABELS]), training=True, label_smoothing=0.1, top5=True)
    integers = classification(model(LOGITS), batch(LABELS), training=True, label_smoothing=0.1, top5=True)
    assert list(one_hot) == list(integers) == ["loss", "accuracy", "top5"]
    for key in one_hot:
        np.testing.assert_allclose(one_hot[key], integers[key], rtol=1e-6)


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


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits = tf.cast(LOGITS * 30, dtype)
    values = classification(model(logits), batch(LABELS), training=True)
    assert values["loss"].dtype == tf.float32
    exact = tf.cast(logits, tf.float64).numpy()
    np.testing.assert_allclose(values["loss"], -log_softmax(exact)[range(6), LABELS], rtol=1e-5, atol=1e-5)


def test_passes_training_and_other_keys_on():
    spy = model(LOGITS)
    for training in (True, False):
        classification(spy, {"x": tf.zeros([6]), "y": tf.constant(LABELS)}, training=training, inputs="x", labels="y")
        assert spy.training is training


def test_gradient_is_softmax_minus_labels():
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.reduce_sum(classification(lambda x, training: logits, batch(LABELS), training=True)["loss"])
    expected = np.exp(log_softmax(LOGITS)) - np.eye(7)[LABELS]
    np.testing.assert_allclose(tape.gradient(loss, logits), expected, rtol=1e-5, atol=1e-6)


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
    "outputs, labels, arguments, message",
    [
        (LOGITS, LABELS, {"labels": "digit"}, r"batch\['digit'\], but the batch has: image, label"),
        (LOGITS, LABELS, {"inputs": "x"}, r"batch\['x'\], but the batch has: image, label"),
        (LOGITS, LABELS, {"label_smoothing": 1.0}, r"label_smoothing must be within \[0, 1\). Received: 1.0"),
        (LOGITS[:, :4], LABELS, {"top5": True}, r"top5 needs at least 5 classes. Received: logits of shape \(6, 4\)"),
        (LOGITS[:, 0], LABELS, {}, r"logits of shape \[n, classes\]. Received: \(6,\)"),
        (LOGITS, LABELS[:, None], {}, r"integer labels need the shape \[n\]. Received: labels \(6, 1\) int64"),
        (
            LOGITS,
            np.eye(10)[LABELS],
            {},
            r"distributions \[n, 7\].* Received: labels \(6, 10\) float64, logits \(6, 7\)",
        ),
        (LOGITS, LABELS.astype(np.float32), {}, r"distributions \[n, 7\].* Received: labels \(6,\) float32"),
        (LOGITS, LABELS.astype(str), {}, r"labels must be integers .* Received: labels \(6,\) string"),
    ],
)
def test_classification_refuses(outputs, labels, arguments, message):
    with pytest.raises(ValueError, match=message):
        classification(model(outputs), batch(labels), training=True, **arguments)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [keras.Input((9,)), keras.layers.Dense(7)],
            r"takes examples of shape \(9,\), and cannot be called with those of the data, of shape \(4, 4, 1\)",
        ),
        ([keras.layers.Flatten(), keras.layers.Conv2D(2, 3)], r"of shape \(4, 4, 1\): Input 0 .* min_ndim=4"),
        (
            [keras.layers.Flatten(), keras.layers.Reshape((5, 5))],
            r"shape \(4, 4, 1\): Exception encountered when calling Reshape\.call\(\)\. The total .*=\(5, 5\)",
        ),
    ],
)
def test_refuses_a_model_for_other_shapes_in_one_line(layers, message):
    data = {"image": tf.zeros([2, 4, 4, 1]), "label": tf.zeros([2], tf.int64)}
    with pytest.raises(ValueError, match=message):
        classification(keras.Sequential(layers), data, training=False)


def test_refuses_a_model_with_several_outputs():
    with pytest.raises(ValueError, match=r"a model with one output. Received: a dict"):
        classification(lambda x, training: {"a": x}, batch(LABELS), training=True)


@pytest.mark.parametrize(
    "outputs, targets, loss, message",
    [
        ((5, 2), (5,), "mse", r"shape of the model's outputs. Received: targets \(5,\), outputs \(5, 2\)"),
        ((5,), (5, 1), "mse", r"Received: targets \(5, 1\), outputs \(5,\)"),
        ((5, 3), (5, 4), "mae", r"Received: targets \(5, 4\), outputs \(5, 3\)"),
        ((5,), (5,), "huber", r"loss must be \"mse\" or \"mae\". Received: 'huber'"),
    ],
)
def test_regression_refuses(outputs, targets, loss, message):
    data = {"inputs": tf.zeros([5]), "targets": tf.zeros(targets)}
    with pytest.raises(ValueError, match=message):
        regression(model(np.zeros(outputs)), data, training=True, loss=loss)


def test_mirror_takes_the_mean_of_both_views_in_evaluation_alone():
    images = np.random.default_rng(1).normal(size=(6, 4, 5, 3)).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=(60, 7)).astype(np.float32)

    def linear(inputs, training):
        return tf.reshape(inputs, [6, 60]) @ weights

    both = (images.reshape(6, 60) @ weights + images[:, :, ::-1].reshape(6, 60) @ weights) / 2
    received = {"label": tf.constant(LABELS), "image": tf.constant(images)}
    losses = {
        training: airbench.classification(linear, received, training=training, mirror=True)["loss"]
        for training in (True, False)
    }
    np.testing.assert_allclose(losses[False], -log_softmax(both)[range(6), LABELS], rtol=1e-4)
    np.testing.assert_allclose(losses[True], classification(linear, received, training=True)["loss"])


def test_shifted_views_count_as_much_as_the_image_itself_in_evaluation_alone():
    images = np.random.default_rng(1).normal(size=(6, 4, 5, 3)).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=(60, 7)).astype(np.float32)

    def linear(inputs, training):
        return tf.reshape(inputs, [6, 60]) @ weights

    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
    views = [images, images, padded[:, :4, :5], padded[:, 2:, 2:]]
    logits = np.mean(
        [each @ weights for v in views for each in (v.reshape(6, 60), v[:, :, ::-1].reshape(6, 60))], axis=0
    )
    received = {"label": tf.constant(LABELS), "image": tf.constant(images)}
    options = {"mirror": True, "shift": 1}
    found = airbench.classification(linear, received, training=False, **options)["loss"]
    np.testing.assert_allclose(found, -log_softmax(logits)[range(6), LABELS], rtol=1e-4)
    plain = classification(linear, received, training=True)["loss"]
    np.testing.assert_allclose(airbench.classification(linear, received, training=True, **options)["loss"], plain)
