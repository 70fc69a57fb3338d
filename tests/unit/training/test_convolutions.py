"""Convolutions as products of matrices, beside Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step.layers import convolutions

MIXED = {"dtype": "mixed_bfloat16"}
LARGE = {"filters": 128, "kernel_size": 3, **MIXED}


def operations(layer, images, backward=False):
    """Kinds of operations in the graph of a layer, of the gradients too if `backward`."""

    @tf.function
    def traced(images):
        if not backward:
            return layer(images)
        with tf.GradientTape() as tape:
            outputs = layer(images)
        return tape.gradient(outputs, layer.trainable_variables[0].value)

    graph = traced.get_concrete_function(tf.TensorSpec(images.shape, images.dtype)).graph
    return {operation.type for operation in graph.get_operations()}


def compute(model, images):
    """Outputs of a model, and the gradients of the images, the kernel and the bias."""
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = model(images)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2)
    return [outputs, *tape.gradient(loss, [images, *(variable.value for variable in model.trainable_variables)])]


def assert_close(found, expected, **bounds):
    """`bounds`: as `numpy.testing.assert_allclose` takes them."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, **bounds)


def in_float32(model, images):
    """As `compute` of a convolution, in float32, of the same numbers: those of bfloat16."""

    def rounded(value):
        return tf.cast(tf.cast(value, tf.bfloat16), tf.float32)

    (layer,) = model.layers
    exact = keras.Sequential([type(layer).from_config(layer.get_config() | {"dtype": "float32"})])
    exact.build(images.shape)
    exact.set_weights([rounded(value) for value in model.get_weights()])
    return compute(exact, rounded(images))


def assert_as_exact(found, expected, exact):
    """Compares with float32: processors without bfloat16 round its sums, of Keras' convolution and of products, apart.

    An error is at most 2 % of the largest number of the tensor, or that of Keras.
    """
    for one, other, true in zip(found, expected, exact, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        errors = [float(tf.reduce_max(tf.abs(tf.cast(value, tf.float32) - true))) for value in (one, other)]
        assert errors[0] <= max(0.02 * float(tf.reduce_max(tf.abs(true))), errors[1])


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(("strides", "padding"), [(1, "valid"), ((3, 1), "same")])
def test_outputs_and_gradients_are_those_of_keras(strides, padding, dtype):
    keras.utils.set_random_seed(1)
    images = tf.constant(np.random.default_rng(0).standard_normal((4, 7, 6, 5)), tf.float32)
    layer = keras.layers.Conv2D(3, 1, strides=strides, padding=padding, activation="tanh", dtype=dtype)
    model = keras.Sequential([layer])
    expected, before = compute(model, images), operations(model, images)
    convolutions.use_products(model, tiles=False)
    found, after = compute(model, images), operations(model, images)
    assert "Conv2D" in before and "Conv2D" not in after and "MatMul" in after
    if dtype == "float32":
        assert_close(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert_as_exact(found, expected, in_float32(model, images))


@pytest.mark.parametrize(
    ("kernel", "padding", "size"), [(3, "same", (5, 4)), ((2, 4), "same", (8, 5)), (3, "valid", (6, 7))]
)
def test_gradients_of_larger_kernels_are_those_of_keras_with_tiles(kernel, padding, size):
    keras.utils.set_random_seed(1)
    images = tf.constant(np.random.default_rng(0).standard_normal((3, *size, 128)), tf.float32)
    model = keras.Sequential([keras.layers.Conv2D(130, kernel, padding=padding, **MIXED)])
    expected, before = compute(model, images), operations(model, images, backward=True)
    convolutions.use_products(model, tiles=True)
    found, after = compute(model, images), operations(model, images, backward=True)
    assert "Conv2DBackpropFilter" in before and "Conv2DBackpropFilter" not in after and "MatMul" in after
    assert_as_exact(found, expected, in_float32(model, images))


def test_gradients_of_gradients_are_those_of_keras_with_tiles():
    """The gradient of a gradient penalty, as of a WGAN's critic."""
    keras.utils.set_random_seed(1)
    images = tf.constant(np.random.default_rng(0).standard_normal((3, 4, 4, 128)), tf.float32)
    model = keras.Sequential([keras.layers.Conv2D(128, 3, activation="tanh", **MIXED)])
    model.build(images.shape)

    def penalty():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(images)
                total = tf.reduce_sum(tf.cast(model(images), tf.float32))
            size = tf.reduce_sum(tape.gradient(total, images) ** 2)
        return outer.gradient(size, model.trainable_variables[0].value)

    expected = penalty()
    convolutions.use_products(model, tiles=True)
    # Of sums of many products in bfloat16: by the largest number.
    assert_close([penalty()], [expected], rtol=0, atol=0.02 * max(1.0, float(tf.reduce_max(tf.abs(expected)))))


class Halved(keras.layers.Conv2D):
    """A convolution of a user's own."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel / 2)


def conv(**options):
    return keras.layers.Conv2D(**{"filters": 3, "kernel_size": 1} | options)


@pytest.mark.parametrize(
    ("layer", "shape", "tiles", "is_product"),
    [
        (conv(), (None, 7, 6, 5), False, False),  # Batches of any size.
        (conv(), (4, 17, 16, 5), True, False),  # Many positions in float32, and without tiles, and with strides.
        (conv(**MIXED), (4, 17, 16, 5), False, False),
        (conv(**MIXED), (4, 17, 16, 5), True, True),
        (conv(**MIXED, strides=2), (16, 17, 16, 5), True, False),
        (conv(kernel_size=(1, 3)), (4, 7, 6, 5), False, False),  # A larger kernel.
        (conv(filters=4, groups=2), (4, 7, 6, 4), False, False),
        (conv(**LARGE), (4, 7, 6, 128), False, False),  # Without tiles; with few channels; with many columns.
        (conv(**LARGE), (4, 7, 6, 64), True, False),
        (conv(**LARGE), (4, 7, 18, 128), True, False),
        (conv(**LARGE, dilation_rate=2), (4, 7, 6, 128), True, False),
        (conv(**LARGE, strides=2), (4, 7, 6, 128), True, False),
        (Halved(3, 1), (4, 7, 6, 5), False, False),
    ],
)
def test_others_stay_convolutions(layer, shape, tiles, is_product):
    model = keras.Sequential([layer])
    model.build((None, *shape[1:]))
    convolutions.use_products(model, tiles=tiles)
    assert ("MatMul" in operations(model, tf.TensorSpec(shape, tf.float32), backward=True)) == is_product
