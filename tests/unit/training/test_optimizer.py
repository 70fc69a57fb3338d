"""Fused updates: the numbers are Keras' own, and what cannot be fused is left to Keras."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist import config as config_lib
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.updates import fused_updates, tables

STEPS = 20
SCHEDULE = keras.optimizers.schedules.CosineDecay(0.05, STEPS)
FUSED = {
    "plain": lambda: keras.optimizers.SGD(SCHEDULE),
    "momentum": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(SCHEDULE, beta_1=0.8, epsilon=1e-4),
    "adamw": lambda: keras.optimizers.AdamW(SCHEDULE, weight_decay=0.1),
}


PLAIN = ("RMSprop", "Adadelta", "Adafactor", "Adagrad", "Lamb", "Nadam", "Adamax")
OTHERS = {
    "centered": lambda: keras.optimizers.RMSprop(SCHEDULE, centered=True, momentum=0.5, weight_decay=0.01),
    "amsgrad": lambda: keras.optimizers.Adam(SCHEDULE, amsgrad=True),
    **{kind: functools.partial(getattr(keras.optimizers, kind), SCHEDULE) for kind in PLAIN},
    "ftrl": lambda: keras.optimizers.Ftrl(SCHEDULE, l2_shrinkage_regularization_strength=0.1),
    "clipped_lion": lambda: keras.optimizers.Lion(SCHEDULE, global_clipnorm=1.0),
    "clipped_adam": lambda: keras.optimizers.Adam(SCHEDULE, clipnorm=1.0),
    "sgd_by_value": lambda: keras.optimizers.SGD(SCHEDULE, clipvalue=0.5),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # Not in Keras 3.12, whose Muon fails on TensorFlow.
    OTHERS["schedule_free"] = lambda: keras.optimizers.ScheduleFreeAdamW(0.05)
    OTHERS["muon"] = lambda: keras.optimizers.Muon(SCHEDULE, exclude_layers=["."])


# Kernels that add rows in no fixed order on GPUs.
IN_NO_ORDER = {"UnsortedSegmentSum", "ResourceScatterAdd", "ResourceScatterSub"}


def train(optimizer, sparse=False, ops=None):
    """Weights and slots after some steps on gradients made up of the step's number; adds the types of ops to `ops`."""
    optimizer_lib.accept_summed_gradients(optimizer, lambda: None)
    generator = np.random.default_rng(0)
    weights = [keras.Variable(generator.normal(size=shape).astype(np.float32)) for shape in ((7, 5), (3,))]
    optimizer.build(weights)

    @tf.function
    def step(first, second):
        if sparse:  # One row occurs twice.
            first = tf.IndexedSlices(first[:3], tf.constant([4, 1, 4]), tf.shape(first))
        optimizer.apply([first, second], weights)

    for _ in range(STEPS):
        step(*(tf.constant(generator.normal(size=weight.shape), tf.float32) for weight in weights))
    if ops is not None:
        traced = step.get_concrete_function(*(tf.TensorSpec(weight.shape) for weight in weights))
        definition = traced.graph.as_graph_def()
        nested = [node for function in definition.library.function for node in function.node_def]
        ops |= {node.op for node in (*definition.node, *nested)}
    return [variable.numpy() for variable in (*weights, *optimizer.variables)]


# Each row traces two training steps.
@pytest.mark.parametrize(
    ("name", "sparse"),
    slow_except(
        [(name, sparse) for name in FUSED for sparse in (False, True)],
        [("nesterov", False), ("adamw", True)],
    ),
)
def test_a_fused_update_is_that_of_keras(name, sparse):
    plain, optimizer = FUSED[name](), FUSED[name]()
    optimizer_lib.accept_summed_gradients(optimizer, fused_updates.fuse(optimizer))
    assert optimizer.get_config() | {"name": plain.name} == plain.get_config()
    found, expected = train(optimizer, sparse), train(plain, sparse)
    assert len(found) > 2 and found[2] == STEPS
    for mine, keras_own in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", slow_except([*FUSED, *OTHERS], ["momentum", "adam", "clipped_lion"]))
def test_rows_of_lookups_are_added_in_a_fixed_order_and_update_as_in_keras(name):
    make = (FUSED | OTHERS)[name]
    plain, optimizer = make(), make()
    optimizer_lib.accept_summed_gradients(optimizer, fused_updates.fuse(optimizer))
    with tables.convert_in_fixed_order():
        found = train(optimizer, sparse=True, ops=(ops := set()))
    for mine, keras_own in zip(found, train(plain, sparse=True), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=1e-5, atol=1e-6)
    assert "SparseSegmentSum" in "".join(ops) and not IN_NO_ORDER & ops


def movements(optimizer, gradients):
    """How far two weights move in the first step and in the others; each has an apply of its own in one graph."""
    weights = [keras.Variable(np.zeros(gradients.shape[1:]), dtype=gradients.dtype.name) for _ in range(2)]
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(gradient):
        for weight in weights:
            optimizer.apply([gradient], [weight])

    step(gradients[0])
    first = [weight.numpy() for weight in weights]
    for gradient in gradients[1:]:
        step(gradient)
    return [*first, *(weight.numpy() - one for weight, one in zip(weights, first, strict=True))]


@pytest.mark.parametrize("dtype", slow_except(["float32", "float64"], ["float32"]))
@pytest.mark.parametrize("kind", slow_except([keras.optimizers.Adam, keras.optimizers.AdamW], [keras.optimizers.Adam]))
def test_adam_moves_weights_as_far_as_that_of_keras(kind, dtype):
    """By the kernel's own 1 - beta_2, which is rounded twice, they would move 6e-6 further in the first step."""
    gradients = tf.constant(np.random.default_rng(0).normal(size=(300, 9)), dtype)
    plain, optimizer = (kind(0.5, epsilon=0.01, weight_decay=0.0) for _ in range(2))
    optimizer_lib.accept_summed_gradients(optimizer, fused_updates.fuse(optimizer))
    tolerance = {"float32": 2.5e-6, "float64": 1e-12}[dtype]  # Rounding in float32 is 0.8e-6.
    for mine, keras_own in zip(movements(optimizer, gradients), movements(plain, gradients), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("total", "shortened"), [(660, False), (45, False), (44, False), (22, True)])
def test_a_warmup_that_is_longer_than_the_run_is_shortened_with_a_notice(total, shortened):
    steps, notice = optimizer_lib.schedule_steps(config_lib.LearningRate(warmup_epochs=2), 22, total)
    assert steps["warmup_steps"] == 44 and (steps["total_steps"] == total) == (total > 44) and steps["total_steps"] > 44
    assert bool(notice) == shortened
    assert not shortened or all(part in notice for part in ("warmup_epochs=2: ", "44 steps to the 22", "to 0.5 of"))


def test_other_optimizers_and_updates_that_a_user_has_set_are_left_alone():
    mine, called = type("Mine", (keras.optimizers.Adam,), {})(0.1), []
    optimizer_lib.accept_summed_gradients(mine, fused_updates.fuse(mine))
    assert "update_step" not in vars(mine)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.update_step = lambda *given: called.append(given)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    fused_updates.fuse(optimizer)
    optimizer.update_step(tf.ones([2]), variable, 0.1)
    assert len(called) == 1


@pytest.mark.parametrize(
    ("before", "now", "restored", "expected", "recorded", "words"),
    [
        (0.5, 0.5, 0.25, 0.25, 0.5, "learning rate 0.25, from the checkpoint; 0.5 is configured"),
        (0.5, 0.125, 0.25, 0.125, 0.125, "learning rate 0.125, as configured now; 0.5 was"),
        (None, 0.125, 0.25, 0.25, 0.125, "learning rate 0.25, from the checkpoint; 0.125 is configured"),
        # The next `fit` of the same script: a callback of the one before has changed the rate.
        (0.5, 0.25, 0.25, 0.25, 0.5, None),
    ],
)
def test_a_newly_configured_learning_rate_replaces_that_of_the_checkpoint(
    before, now, restored, expected, recorded, words
):
    optimizer = keras.optimizers.SGD(restored)
    configured, text = optimizer_lib.resume_learning_rate(optimizer, now, before)
    assert (float(optimizer.learning_rate), configured) == (expected, recorded)
    assert text is None if words is None else text.startswith(words)
    scheduled = keras.optimizers.SGD(SCHEDULE)  # Which computes it anew.
    assert optimizer_lib.resume_learning_rate(scheduled, None, before) == (None, None)


def test_a_batch_may_have_a_part_that_is_none():
    table, optimizer = tf.Variable(tf.ones([4, 2])), keras.optimizers.SGD()

    @tf.function(input_signature=[tf.TensorSpec([3], tf.int32)])
    def dense_gradient(ids):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.gather(table, ids))
        (gradient,) = tables.select([tape.gradient(total, table)], [table], (ids, None), optimizer)
        return tf.convert_to_tensor(gradient)

    assert dense_gradient(tf.constant([0, 0, 3])).numpy().tolist() == [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


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
        optimizer_lib.accept_summed_gradients(optimizer, fused_updates.fuse(optimizer))
        weight = keras.Variable(np.ones(3, np.float32), dtype=dtype)
        optimizer.build([weight])
        counts[dtype] = operations(optimizer, weight, tf.ones(3, dtype)).count(kernel)
    assert counts == {"float32": 1, "bfloat16": 0}
