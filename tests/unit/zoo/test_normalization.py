"""The fused layer computes what Keras' own does; groups make N replicas compute what one does."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.zoo.normalization import batch_normalization, fuse

with_renorm = pytest.mark.skipif(
    "renorm" not in inspect.signature(keras.layers.BatchNormalization).parameters, reason="Keras 3.12 has no renorm"
)


def example(shape=(8, 5, 6, 3), dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    return tf.cast(random.normal(0.7, 2.0, shape), dtype)


def train(layer, inputs, function=lambda call: call):
    """Calls `layer` for training: its outputs, the gradients by inputs and weights, and its moving statistics."""
    if not layer.built:
        layer.build(inputs.shape)
        for i, weight in enumerate(layer.trainable_variables):
            weight.assign(np.linspace(0.5 + i, 1.5, inputs.shape[-1]))
    direction = example(inputs.shape, inputs.dtype, seed=1)

    @function
    def call(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            loss = tf.reduce_sum(outputs * tf.cast(direction, outputs.dtype))
        return outputs, *tape.gradient(loss, [inputs, *(v.value for v in layer.trainable_variables)])

    results = call(inputs)
    return [np.asarray(tf.cast(x, tf.float64)) for x in (*results, *layer.non_trainable_variables)]


def assert_close(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        *(({}, 1e-5), ({"momentum": 0.5, "epsilon": 0.1}, 1e-5), ({"scale": False}, 1e-5), ({"center": False}, 1e-5)),
        *(({"axis": 3}, 1e-5), ({"shape": (8, 3)}, 1e-5), ({"shape": (4, 3, 2, 2, 3)}, 1e-5)),
        pytest.param({"renorm": True}, 1e-5, marks=with_renorm),
        *(({"dtype": "mixed_bfloat16"}, 2e-2), ({"dtype": "mixed_float16"}, 4e-3), ({"dtype": "float64"}, 1e-9)),
    ],
    ids=str,
)
def test_equals_keras(arguments, tolerance):
    arguments = dict(arguments)
    shape = arguments.pop("shape", (8, 5, 6, 3))
    fused, plain = batch_normalization(**arguments), keras.layers.BatchNormalization(**arguments)
    for seed in range(3):
        inputs = example(shape, fused.compute_dtype, seed=seed)
        assert_close(train(fused, inputs), train(plain, inputs), tolerance)
    found, expected = (np.asarray(layer(inputs, training=False), float) for layer in (fused, plain))
    assert_close([found], [expected], tolerance)
    assert fused(inputs, training=True).dtype == fused.compute_dtype
    assert [variable.dtype for variable in fused.variables] == [variable.dtype for variable in plain.variables]


@pytest.mark.parametrize("group_size", slow_except([None, 4], [4]))
def test_equals_keras_where_the_batch_is_not_known_and_under_xla(group_size):
    inputs = example()
    expected = train(batch_normalization(group_size=group_size), inputs)
    unknown = tf.function(input_signature=[tf.TensorSpec((None, 5, 6, 3))])
    if group_size is None:
        assert_close(train(batch_normalization(), inputs, unknown), expected)
    assert_close(train(batch_normalization(group_size=group_size), inputs, tf.function(jit_compile=True)), expected)


def test_groups_equal_keras_layers_called_one_group_each():
    inputs = example()
    layer = batch_normalization(group_size=2)
    layer.build(inputs.shape)
    outputs = tf.function(lambda x: layer(x, training=True))(inputs)
    statistics = []
    for i, group in enumerate(tf.split(inputs, 4)):
        plain = keras.layers.BatchNormalization()
        np.testing.assert_allclose(outputs[2 * i : 2 * i + 2], plain(group, training=True), rtol=1e-5, atol=1e-5)
        statistics.append([plain.moving_mean.numpy(), plain.moving_variance.numpy()])
    mean, variance = np.mean(statistics, axis=0)
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-5)


def test_fuse_changes_a_foreign_model_to_the_same_mathematics():
    def build():
        keras.utils.set_random_seed(0)
        inner = keras.Sequential([keras.Input((4, 4, 4)), keras.layers.BatchNormalization(momentum=0.5)])
        first = [
            keras.layers.Conv2D(4, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("tanh"),
        ]
        return keras.Sequential([keras.Input((6, 6, 3)), *first, inner, keras.layers.Flatten(), keras.layers.Dense(2)])

    inputs = example((8, 6, 6, 3))
    plain, fused = build(), build()
    assert fuse(fused) is fused
    graph = tf.function(lambda x: fused(x, training=True)).get_concrete_function(tf.TensorSpec(inputs.shape))
    assert [operation.type for operation in graph.graph.get_operations()].count("FusedBatchNormV3") == 2
    results = []
    for model in (plain, fused):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(inputs, training=True)))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        results.append([x.numpy() for x in (loss, *gradients, *model.non_trainable_variables)])
    assert_close(*results)
    assert not fused.layers[1].synchronized
    assert fuse(fused, synchronized=True).layers[1].synchronized


def test_groups_of_a_batch_of_unknown_size_are_refused():
    layer, inputs = batch_normalization(group_size=3), example()
    layer.build(inputs.shape)
    layer(inputs, training=False)
    unknown = tf.function(lambda x: layer(x, training=True), input_signature=[tf.TensorSpec((None, 5, 6, 3))])
    with pytest.raises(ValueError, match=r"group_size=3 .* an unknown size"):
        unknown(inputs)
