"""Models that end in a softmax or sigmoid train as those that return the logits, or are refused by name."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist import config
from tfdist.training.step.layers import remat_scopes
from tfdist.training.step.random_numbers import seed_generators
from tfdist.zoo.objectives import classification, keras_loss

# Scaled by 60: in float32 most probabilities of a wrong class are exactly 0.
INPUTS = np.random.default_rng(0).normal(0.0, 60.0, (16, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 4, 16)
LAYERS = keras.layers


class Subclassed(keras.Model):
    """A softmax that is no layer."""

    def __init__(self, units):
        super().__init__()
        self.dense = LAYERS.Dense(units, name="last")

    def call(self, inputs):
        return tf.nn.softmax(self.dense(inputs))


def sequential(*layers):
    return keras.Sequential([keras.Input((6,)), *layers])


# Models of four classes; the layer that returns the outputs is called "last".
SOFTMAX = {
    "argument": lambda: sequential(LAYERS.Dense(4, activation="softmax", name="last")),
    "activation": lambda: sequential(LAYERS.Dense(4), LAYERS.Activation("softmax", name="last")),
    "layer": lambda: sequential(LAYERS.Dense(4), LAYERS.Softmax(name="last")),
    "nested": lambda: sequential(sequential(LAYERS.Dense(4, activation="softmax")), LAYERS.Identity(name="last")),
    "converted": lambda: sequential(
        LAYERS.Dense(4, activation="softmax", dtype="mixed_bfloat16"), LAYERS.Activation("linear", dtype="float32")
    ),
    "subclassed": lambda: Subclassed(4),
}


def logits_of(model):
    """Returns the model with the same weights and without a softmax or sigmoid."""
    model(INPUTS)  # Builds a subclassed one.
    kernel, bias = model.get_weights()
    dtype = "mixed_bfloat16" if any(layer.dtype_policy.name == "mixed_bfloat16" for layer in model.layers) else None
    logits = sequential(LAYERS.Dense(len(bias), dtype=dtype))
    logits.set_weights([kernel, bias])
    return logits


def computed(objective, model, labels, *, compiled, **arguments):
    """Returns the objective's values in training and evaluation, and the gradients of the summed loss."""

    def call():
        batch = {"image": tf.constant(INPUTS), "label": tf.constant(labels)}
        with tf.GradientTape() as tape:
            values = objective(model, batch, training=True, **arguments)
            loss = tf.reduce_sum(values["loss"])
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return values, objective(model, batch, training=False, **arguments), gradients

    return tf.nest.map_structure(np.asarray, tf.function(call)() if compiled else call())


def assert_equal(ours, theirs):
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), ours, theirs)


@pytest.mark.parametrize(
    ("name", "compiled"),
    slow_except(itertools.product(SOFTMAX, (True, False)), [("argument", True)]),
)
def test_a_softmax_trains_as_its_logits(name, compiled):
    model = SOFTMAX[name]()
    logits = logits_of(model)
    ours = computed(classification, model, LABELS, compiled=compiled)
    assert_equal(ours, computed(classification, logits, LABELS, compiled=compiled))
    largest = ours[0]["loss"].max()
    assert largest > 50 and np.abs(ours[2][0]).max() > 1.0, "probabilities of 0 are the case to test"
    named = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy", "sparse_categorical_crossentropy"]}
    with_loss = computed(keras_loss, model, LABELS, compiled=compiled, **named)
    np.testing.assert_allclose(with_loss[0]["loss"], ours[0]["loss"], rtol=1e-5)
    np.testing.assert_array_equal(with_loss[1]["accuracy"], ours[1]["accuracy"])
    of_logits = computed(keras_loss, logits, LABELS, compiled=compiled, **named, arguments={"from_logits": True})
    if name != "converted":  # Its probabilities, which the metrics get, are rounded to bfloat16.
        assert_equal(with_loss, of_logits)


@pytest.mark.parametrize("compiled", slow_except([True, False], [False]))
def test_a_sigmoid_trains_as_its_logits(compiled):
    model, labels = sequential(LAYERS.Dense(1, activation="sigmoid")), LABELS % 2
    named = {"loss": "binary_crossentropy", "metrics": ["accuracy", "binary_crossentropy"]}
    ours = computed(keras_loss, model, labels, compiled=compiled, **named)
    of_logits = {**named, "arguments": {"from_logits": True}}
    theirs = computed(keras_loss, logits_of(model), labels, compiled=compiled, **of_logits)
    assert_equal(ours, theirs)
    # The threshold of the accuracy is a probability of 1/2, which are logits of 0.
    predicted = np.asarray(logits_of(model)(INPUTS))[:, 0] > 0
    np.testing.assert_array_equal(ours[1]["accuracy"], (predicted == labels).astype(np.float32))
    assert ours[0]["loss"].max() > 20 and np.abs(ours[2][0]).max() > 1.0


class Shares(LAYERS.Layer):
    """Probabilities without a softmax."""

    def call(self, inputs):
        positive = tf.exp(inputs / 100.0)
        return positive / tf.reduce_sum(positive, -1, keepdims=True)


PROBABILITIES = {
    "sigmoid": lambda: sequential(LAYERS.Dense(4, activation="sigmoid", name="last")),
    "shares": lambda: sequential(LAYERS.Dense(4), Shares(name="last")),
    "logits": lambda: sequential(LAYERS.Dense(4, name="last")),
    "softmax": SOFTMAX["argument"],
    "one": lambda: sequential(LAYERS.Dense(1, activation="sigmoid", name="last")),
}
CATEGORICAL = {"loss": "sparse_categorical_crossentropy"}
BINARY = {"loss": "binary_crossentropy"}


@pytest.mark.parametrize(
    ("objective", "name", "arguments", "words"),
    [
        (classification, "sigmoid", {}, "'last' .*sigmoid.*keras_loss"),
        (classification, "one", {}, "one output .*'last'.*binary_crossentropy"),
        (keras_loss, "logits", CATEGORICAL, r"softmax \(.*'last'\).* None"),
        (keras_loss, "shares", CATEGORICAL, 'softmax .*"from_logits": False'),
        (keras_loss, "sigmoid", CATEGORICAL, r"softmax.* sigmoid \(.*'last'\)"),
        (keras_loss, "softmax", BINARY, r"'binary_crossentropy' .* softmax \(.*'last'\)"),
    ],
)
def test_outputs_of_unknown_kind_are_refused(objective, name, arguments, words):
    with pytest.raises(ValueError, match=words):
        computed(objective, PROBABILITIES[name](), LABELS, compiled=False, **arguments)


def test_a_softmax_that_is_recomputed_is_refused():
    """Its operations hide the logits: without a message the loss would take the probabilities for logits."""
    model = SOFTMAX["argument"]()
    options = config.Config(model={}, train=config.Train(recompute=["last"]))
    remat_scopes.adopt()
    remat_scopes.put_into_scope(model, options)

    @tf.function(autograph=False)
    def step():
        seed_generators.begin_forward_pass(0)  # As a step of a run does: nothing is recomputed elsewhere.
        classification(model, {"image": tf.constant(INPUTS), "label": tf.constant(LABELS)}, training=True)

    with pytest.raises(ValueError, match=r"The layer with the softmax .*out of config\.train\.recompute"):
        step()
