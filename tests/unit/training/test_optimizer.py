"""Fused updates: the numbers are Keras' own, and what cannot be fused is left to Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step import optimizer as optimizer_lib

STEPS = 20
SCHEDULE = keras.optimizers.schedules.CosineDecay(0.05, STEPS)
FUSED = {
    "momentum": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(SCHEDULE, beta_1=0.8, epsilon=1e-4),
    "adamw": lambda: keras.optimizers.AdamW(SCHEDULE, weight_decay=0.1),
}


def train(optimizer, sparse=False):
    """Weights and slots after some steps on gradients made up of the step's number."""
    generator = np.random.default_rng(0)
    weights = [keras.Variable(generator.normal(size=shape).astype(np.float32)) for shape in ((7, 5), (3,))]
    optimizer.build(weights)

    @tf.function
    def step(first, second):
        if sparse:
            first = tf.IndexedSlices(first[:2], tf.constant([1, 4]), tf.shape(first))
        optimizer.apply([first, second], weights)

    for _ in range(STEPS):
        step(*(tf.constant(generator.normal(size=weight.shape), tf.float32) for weight in weights))
    return [variable.numpy() for variable in (*weights, *optimizer.variables)]


@pytest.mark.parametrize(
    ("name", "sparse"), [*((name, False) for name in FUSED), ("momentum", True), ("nesterov", True)]
)
def test_a_fused_update_is_that_of_keras(name, sparse):
    plain, optimizer = FUSED[name](), FUSED[name]()
    optimizer_lib.fuse(optimizer)
    assert optimizer.get_config() | {"name": plain.name} == plain.get_config()
    found, expected = train(optimizer, sparse), train(plain, sparse)
    assert len(found) > 2 and found[2] == STEPS
    for mine, keras_own in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-5, atol=1e-6)


def test_a_fused_update_is_one_operation_a_weight():
    optimizer = FUSED["momentum"]()
    optimizer_lib.fuse(optimizer)
    weights = [keras.Variable(np.ones(3, np.float32)) for _ in range(2)]
    optimizer.build(weights)
    graph = tf.function(lambda: optimizer.apply([tf.ones(3)] * 2, weights)).get_concrete_function().graph
    assert [node.type for node in graph.get_operations()].count("ResourceApplyKerasMomentum") == 2


def operations(optimizer, weight, gradient):
    """The types of the operations in the graph of one update."""
    graph = tf.function(lambda: optimizer.apply([gradient], [weight])).get_concrete_function().graph
    return [node.type for node in graph.get_operations()]


@pytest.mark.parametrize(
    ("name", "kernel"), [("momentum", "ResourceApplyKerasMomentum"), ("adam", "ResourceApplyAdam")]
)
def test_bfloat16_weights_have_the_update_of_keras(name, kernel):
    """The fused kernels exist for bfloat16 on CPUs only: on a GPU the update could not be placed."""
    counts = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = FUSED[name]()
        optimizer_lib.fuse(optimizer)
        weight = keras.Variable(np.ones(3, np.float32), dtype=dtype)
        optimizer.build([weight])
        counts[dtype] = operations(optimizer, weight, tf.ones(3, dtype)).count(kernel)
    assert counts == {"float32": 1, "bfloat16": 0}


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1),
        keras.optimizers.Adam(amsgrad=True),
        keras.optimizers.RMSprop(),
        type("Mine", (keras.optimizers.SGD,), {})(0.1, momentum=0.9),
    ],
)
def test_other_optimizers_are_left_alone(optimizer):
    optimizer_lib.fuse(optimizer)
    assert "update_step" not in vars(optimizer)
