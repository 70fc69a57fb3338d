"""Activations and normalisation in fewer passes over memory, beside Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow, slow_except

from tfdist.config import patching
from tfdist.training.step import build_context
from tfdist.training.step.layers import fused

SHAPE = (8, 32, 256)
PRECISION = pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
ACTIVATIONS = pytest.mark.parametrize("name", slow_except(["gelu", "silu", "hard_silu", "mish"], ["gelu"]))


def numbers(shape=SHAPE):
    return tf.constant(3 * np.random.default_rng(0).standard_normal(shape), tf.float32)


def operations(model, shape=SHAPE):
    """Names of the functions that XLA compiles in the graph of a model."""
    traced = tf.function(model).get_concrete_function(tf.TensorSpec(shape))
    return [
        operation.name
        for operation in traced.graph.get_operations()
        if operation.type.endswith("PartitionedCall") and operation.get_attr("_XlaMustCompile")
    ]


def compute(model, inputs):
    """Outputs of a model, and the gradients of the inputs and of its weights."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = model(inputs)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32) ** 2 * tf.cos(tf.range(outputs.shape[-1], dtype=tf.float32)))
    return [outputs, *tape.gradient(loss, [inputs, *(variable.value for variable in model.trainable_variables)])]


def assert_close(found, expected, tolerance):
    """Compares each tensor by its largest number."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        one, other = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def check(make, dtype):
    """Compares with Keras' layer in float32: with bfloat16, Keras rounds after each operation."""
    inputs = tf.cast(tf.cast(numbers(), tf.bfloat16), tf.float32)
    models = [keras.Sequential([make(policy)]) for policy in ("float32", dtype)]
    for model in models:
        model.build(SHAPE)
        for variable in model.trainable_variables:
            variable.assign(keras.random.normal(variable.shape, 1.0, 0.5, seed=1))
    expected, (outputs, *_) = (compute(model, inputs) for model in models)
    assert not operations(models[1])
    fused.fuse(models[1])
    found = compute(models[1], inputs)
    assert operations(models[1]) and found[0].dtype == outputs.dtype
    assert_close([tf.cast(found[0], tf.float32), *found[1:]], expected, 1e-5 if dtype == "float32" else 0.02)


@PRECISION
@ACTIVATIONS
def test_activations_and_their_gradients_are_those_of_keras(name, dtype):
    check(lambda policy: keras.layers.Activation(name, dtype=policy), dtype)


@PRECISION
@pytest.mark.parametrize(
    "arguments",
    slow_except([{}, {"scale": False}, {"center": False, "axis": [2]}, {"epsilon": 1, "axis": 2}], [{}]),
)
def test_layer_normalisation_and_its_gradients_are_those_of_keras(arguments, dtype):
    check(lambda policy: keras.layers.LayerNormalization(**arguments, dtype=policy), dtype)


def statistics_of_a_step(layer, inputs, mask=None):
    """Outputs, gradients and moving statistics of a step; and the kinds of operations in its graph."""

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True, mask=mask)
            loss = tf.reduce_sum(tf.cast(tf.sin(outputs), tf.float32))
        return outputs, *tape.gradient(loss, [inputs, *(variable.value for variable in layer.trainable_variables)])

    found = [*step(inputs), *(tf.convert_to_tensor(variable) for variable in layer.non_trainable_variables)]
    return found, {one.type for one in step.get_concrete_function(inputs).graph.get_operations()}


def both(arguments, inputs, mask=None):
    """`statistics_of_a_step` of a layer that is fused, and of Keras'."""
    layers = [keras.layers.BatchNormalization(**arguments) for _ in range(2)]
    for layer in layers:
        layer.build(inputs.shape)
        for index, variable in enumerate(layer.trainable_variables):
            variable.assign(np.linspace(0.5 + index, 1.5, variable.shape[0]))
    fused.fuse(keras.Sequential(layers[:1]))
    return [statistics_of_a_step(layer, inputs, mask) for layer in layers]


@PRECISION
@pytest.mark.parametrize("shape", [slow([6, 9]), [6, 4, 3, 9], slow([2, 3, 2, 2, 9])])
@pytest.mark.parametrize("arguments", [{}, {"scale": False, "momentum": 0.5, "epsilon": 0.1}])
def test_batch_normalisation_is_that_of_keras(arguments, shape, dtype):
    inputs = tf.cast(numbers(shape) + 2, "float32" if dtype == "float32" else "bfloat16")
    (found, kinds), (expected, others) = both({**arguments, "dtype": dtype}, inputs)
    assert "FusedBatchNormV3" in kinds and "FusedBatchNormV3" not in others
    assert_close(found, expected, 1e-5 if dtype == "float32" else 0.02)


@pytest.mark.parametrize(
    ("arguments", "masked"),
    [({}, True), ({"axis": 1}, False), ({"trainable": False}, False), ({"dtype": "float64"}, False)],
)
def test_other_batch_normalisation_is_left_to_keras(arguments, masked):
    inputs = tf.cast(numbers((6, 4, 9)), arguments.get("dtype", "float32"))
    mask = tf.constant([[True, False, True, True]] * 6) if masked else None
    (found, kinds), (expected, _) = both(arguments, inputs, mask)
    assert "FusedBatchNormV3" not in kinds
    assert_close(found, expected, 0)


def test_forward_mode_is_refused_as_long_as_layers_are_fused():
    with patching.restore_attributes():
        fused.fuse(keras.Sequential([keras.layers.Activation("gelu")]))
        with pytest.raises(ValueError, match="ForwardAccumulator"):
            tf.autodiff.ForwardAccumulator(numbers(), numbers())


class Own(keras.layers.LayerNormalization):
    def call(self, inputs):
        return 2 * super().call(inputs)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (keras.layers.Activation("gelu"), (2, 256)),
        (keras.layers.Activation("relu"), SHAPE),
        (keras.layers.LayerNormalization(), (2, 256)),
        (keras.layers.LayerNormalization(axis=1), SHAPE),
        (keras.layers.LayerNormalization(dtype="float64"), SHAPE),
        (Own(), SHAPE),
    ],
)
def test_others_are_left_to_keras(layer, shape):
    model, inputs = keras.Sequential([layer]), numbers([8 if size is None else size for size in shape])
    expected = model(inputs)
    fused.fuse(model)
    assert not operations(model, shape)
    np.testing.assert_array_equal(model(inputs), expected)


@pytest.mark.parametrize(("device", "replaced"), [("CPU", True), ("GPU", False)])
def test_layers_are_replaced_on_cpus_only(device, replaced):
    convolution, activation = layers = [keras.layers.Conv2D(3, 1), keras.layers.Activation("gelu")]
    with patching.restore_attributes():
        build_context.speed_up_layers(keras.Sequential(layers), device)
        assert ("convolution_op" in vars(convolution)) == replaced
        assert (activation.activation is not keras.activations.gelu) == replaced


def normalise_exactly(inputs):
    centred = inputs - tf.reduce_mean(inputs, -1, keepdims=True)
    return centred * tf.math.rsqrt(tf.reduce_mean(centred**2, -1, keepdims=True) + 1e-3)


@pytest.mark.parametrize(
    ("layer", "exact"),
    [
        (keras.layers.Activation("gelu"), keras.activations.gelu),
        slow(keras.layers.LayerNormalization(), normalise_exactly),
    ],
)
def test_gradients_of_gradients_are_exact(layer, exact):
    """Beside float64: a gradient of Keras' gradient of layer normalisation has an error of 0.2 % here."""
    inputs, kernel = numbers(), tf.random.normal([256, 256], stddev=0.05, seed=1)
    fused.fuse(keras.Sequential([layer]))

    def penalty(function, inputs, kernel):
        with tf.GradientTape() as outer:
            outer.watch(kernel)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                total = tf.reduce_sum(tf.sin(function(inputs @ kernel)))
            size = tf.reduce_sum(tape.gradient(total, inputs) ** 2)
        return tf.cast(outer.gradient(size, kernel), tf.float32)

    layer.build(SHAPE)
    expected = penalty(exact, tf.cast(inputs, tf.float64), tf.cast(kernel, tf.float64))
    assert_close([penalty(layer, inputs, kernel)], [expected], 1e-5)


def test_layers_in_branches_have_gradients():
    layer = keras.layers.LayerNormalization()

    @tf.function(autograph=False)
    def gradient(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.cond(inputs[0, 0, 0] > 1e9, lambda: 0.0, lambda: tf.reduce_sum(layer(2 * inputs) ** 3))
        return tape.gradient(total, inputs)

    inputs = numbers()
    expected = gradient(inputs)
    fused.fuse(keras.Sequential([layer]))
    assert_close([tf.function(gradient.python_function, autograph=False)(inputs)], [expected], 1e-5)


def test_inputs_that_the_kernel_cannot_take_are_left_to_keras():
    layer, inputs = keras.layers.BatchNormalization(), numbers((6, 4, 9))
    expected = layer(inputs, training=True)
    fused.fuse(keras.Sequential([layer]))
    unknown = tf.function(lambda x: layer(x, training=True), input_signature=[tf.TensorSpec([None] * 3)])
    ragged = layer(tf.RaggedTensor.from_tensor(inputs), training=True).to_tensor()
    for found in (unknown(inputs), ragged, layer.call(inputs.numpy(), training=True)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_saved_model_has_the_activations_of_keras(tmp_path):
    model = keras.Sequential([keras.Input(SHAPE[1:]), keras.layers.Dense(9, "gelu"), keras.layers.LayerNormalization()])
    fused.fuse(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].activation is keras.activations.gelu
    np.testing.assert_allclose(loaded(numbers()), model(numbers()), rtol=0, atol=1e-5)


def test_numbers_are_rounded_to_bfloat16_as_tensorflow_rounds_them():
    """Every upper half, with lower halves on both sides of the middle."""
    upper = np.arange(2**16, dtype=np.uint32)[:, np.newaxis] << 16
    bits = upper | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    inputs = tf.constant(np.where(finite, bits, upper).view(np.float32))
    found = tf.function(lambda x: fused._narrow(x, tf.bfloat16), jit_compile=True)(inputs)
    np.testing.assert_array_equal(tf.cast(found, tf.float32), tf.cast(tf.cast(inputs, tf.bfloat16), tf.float32))
