"""1x1 convolutions as products of matrices, beside Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step import layers


def operations(layer, images):
    """Kinds of operations in the graph of a layer."""
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec(images.shape, images.dtype)).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("strides", [1, 2, (3, 1)])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_outputs_and_gradients_are_those_of_keras(strides, padding, dtype):
    keras.utils.set_random_seed(1)
    images = tf.constant(np.random.default_rng(0).standard_normal((4, 7, 6, 5)), tf.float32)
    layer = keras.layers.Conv2D(3, 1, strides=strides, padding=padding, activation="tanh", dtype=dtype)
    model = keras.Sequential([layer])

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs = model(images)
            loss = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
        return [outputs, *tape.gradient(loss, [images, *(variable.value for variable in model.trainable_variables)])]

    expected, before = compute(), operations(model, images)
    layers.multiply_pointwise(model, "CPU")
    found, after = compute(), operations(model, images)
    assert "Conv2D" in before and "Conv2D" not in after and "MatMul" in after
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(
            one, other, **({"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"atol": 0.1})
        )


class Halved(keras.layers.Conv2D):
    """A convolution of a user's own."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel / 2)


@pytest.mark.parametrize(
    ("layer", "shape", "device_type"),
    [
        (keras.layers.Conv2D(3, 1), (4, 7, 6, 5), "GPU"),
        (keras.layers.Conv2D(3, 1), (None, 7, 6, 5), "CPU"),
        (keras.layers.Conv2D(3, 1), (4, 17, 16, 5), "CPU"),
        (keras.layers.Conv2D(3, (1, 3)), (4, 7, 6, 5), "CPU"),
        (keras.layers.Conv2D(4, 1, groups=2), (4, 7, 6, 4), "CPU"),
        (Halved(3, 1), (4, 7, 6, 5), "CPU"),
    ],
    ids=["on a GPU", "batches of any size", "many positions", "a larger kernel", "groups", "a class of the user's"],
)
def test_others_stay_convolutions(layer, shape, device_type):
    model = keras.Sequential([layer])
    model.build((None, *shape[1:]))
    layers.multiply_pointwise(model, device_type)
    assert "MatMul" not in operations(model, tf.TensorSpec(shape, tf.float32))
