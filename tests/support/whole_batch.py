"""Small trainings whose losses, metrics and steps see the whole batch, as cases of fits.py."""

import functools

import fits
import keras
import numpy as np
import own_numbers
import tensorflow as tf
from keras import ops

import tfdist
from tfdist import config as c

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(22, 6)).astype("float32")  # In batches of 8 the last has 6.
Y = RANDOM.integers(0, 2, (22, 4)).astype("float32")
WEIGHTS = RANDOM.uniform(0.2, 2.0, 22).astype("float32")
WORDS = (RANDOM.integers(1, 9, (22, 5)) * (np.arange(5) < RANDOM.integers(1, 6, (22, 1)))).astype("int32")
OF_WORDS = WORDS, np.repeat(Y[:, :1, None], 5, axis=1)

bce, mse = keras.losses.BinaryCrossentropy(), keras.losses.MeanSquaredError(reduction="none")


def dice(true, predicted):
    return 1 - 2 * ops.sum(true * predicted) / (ops.sum(true) + ops.sum(predicted))


def masked(true, predicted):
    chosen = ops.cast(true[:, 0] > 0.5, "float32")
    return ops.sum(mse(true, predicted) * chosen) / (ops.sum(chosen) + 1e-9)


def contrastive(true, predicted):
    unit = predicted / (ops.norm(predicted, axis=-1, keepdims=True) + 1e-6)
    return ops.mean(ops.logsumexp(ops.matmul(unit, ops.transpose(unit)), axis=-1))


class Nested(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.inner = keras.losses.MeanSquaredError()

    def call(self, true, predicted):
        return 2.0 * self.inner(true, predicted)


class OwnCall(keras.losses.Loss):
    def __call__(self, true, predicted, sample_weight=None):
        return ops.sum(ops.abs(true - predicted)) / ops.sum(ops.ones_like(true))


class Masked(keras.losses.Loss):
    """Receives Keras' mask with the predictions."""

    def call(self, true, predicted):
        return ops.mean(ops.square(true - predicted), axis=-1) * ops.sum(ops.ones_like(true[:, 0]))


class MaxError(keras.metrics.Metric):
    """Its state is a maximum, and starts below zero."""

    def __init__(self, name="max_error"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", initializer=keras.initializers.Constant(-1.0))

    def update_state(self, true, predicted, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(true - predicted))))

    def result(self):
        return self.largest + 0.0

    def reset_state(self):
        self.largest.assign(-1.0)


def bce_and_dice(true, predicted):
    return bce(true, predicted) + dice(true, predicted)


LOSSES = {
    "bce_and_dice": bce_and_dice,
    "masked": masked,
    "contrastive": contrastive,
    "sum_of_batch": lambda true, predicted: ops.sum(ops.square(true - predicted)),
    "Nested": Nested(),
    "OwnCall": OwnCall(),
    "reduced_to_sum": keras.losses.Dice(reduction="sum"),
}


def dense():
    hidden = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(4, activation="sigmoid")])


def of_words():
    words = keras.layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential([keras.Input((None,), dtype="int32"), words, keras.layers.Dense(1, activation="sigmoid")])


def two_outputs():
    x = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    return keras.Model(x, [keras.layers.Dense(4, activation="sigmoid", name=name)(hidden) for name in ("a", "b")])


class ChangesGradients(keras.Model):
    """Clips, adds up and reports gradients between a tape and an optimizer; a penalty needs gradients of the inputs."""

    def __init__(self, change):
        super().__init__()
        self.network, self.change = dense(), change
        self.norm = keras.metrics.Mean(name="norm")

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                predicted = self(x, training=True)
            penalty = ops.mean(ops.square(inner.gradient(predicted, x)))
            loss = bce(y, predicted) + 0.1 * penalty
        gradients = tape.gradient(loss, self.trainable_variables)
        self.norm.update_state(tf.linalg.global_norm(gradients))
        self.optimizer.apply_gradients(zip(self.change(gradients), self.trainable_variables, strict=True))
        return {"norm": self.norm.result()}


class UpdatesByHand(ChangesGradients):
    """Assigns weights without an optimizer, from gradients."""

    def __init__(self):
        super().__init__(None)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = bce(y, self(x, training=True))
        variables = self.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        self.norm.update_state(loss)
        return {"norm": self.norm.result()}


CHANGES = {
    "clipped": lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0],
    "signs": lambda gradients: [tf.sign(one) * 0.01 for one in gradients],
    "normalised": lambda gradients: [one / (tf.norm(one) + 1e-3) for one in gradients],
}


class WithScale(keras.Model):
    """Its loss uses a weight that is trained."""

    def __init__(self):
        super().__init__()
        self.network = dense()
        self.scale = self.add_weight(name="scale", initializer="ones")
        self.build((None, 6))

    def call(self, x):
        return self.network(x)

    def compile(self, optimizer):
        super().compile(optimizer, lambda true, predicted: dice(true, self.scale * predicted) + ops.square(self.scale))


def case(build, data=(X, Y), metrics=list, evaluates=True, **compiled):
    """A function that makes the case of a model, compiled with what `metrics` returns."""

    def compile_model():
        model = build()
        made = {"metrics": metrics()} if metrics is not list else {}
        model.compile(keras.optimizers.SGD(0.1), **compiled, **made)
        return model

    return lambda: fits.Case(build=compile_model, data=data, options={"epochs": 2}, batch_size=8, evaluates=evaluates)


def metrics():
    """Of several kinds; F1Score has one value per class."""
    return [MaxError(), dice, "mae", keras.metrics.F1Score(threshold=0.5)]


# Without a loss in `compile`, nothing can be evaluated.
of_step = functools.partial(case, evaluates=False)
CASES = {
    **{name: case(dense, loss=loss) for name, loss in LOSSES.items()},
    **{name: of_step(functools.partial(ChangesGradients, change)) for name, change in CHANGES.items()},
    **{name: of_step(build) for name, build in own_numbers.CASES.items()},
    "by_hand": of_step(UpdatesByHand),
    "weights_in_the_loss": case(WithScale),
    "two_outputs": case(two_outputs, (X, [Y, 1 - Y]), loss=[keras.losses.Dice(), "mse"], loss_weights=[0.3, 2.0]),
    "mask": case(of_words, OF_WORDS, loss=Masked()),
    "mean_with_mask": case(of_words, (*OF_WORDS, np.repeat(WEIGHTS[:, None], 5, axis=1)), loss="mse"),
    "mean_with_weights": case(
        dense, (X, Y, WEIGHTS), loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    ),
    "xla": case(dense, loss=bce_and_dice, jit_compile=True, metrics=lambda: [MaxError()]),
    "xla_with_mask": case(of_words, OF_WORDS, loss="mse", jit_compile=True),
    "metrics": case(dense, loss="mse", metrics=metrics),
    "weighted": case(dense, (X, Y, WEIGHTS), loss=Nested(), metrics=lambda: ["mae"]),
}


def measure(names, devices):
    """Trains the cases; returns their results, or the error of a refused one, by name; "keras:NAME" is Keras' own."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=devices, connect_seconds=240))
    found = {}
    for name in names:
        keras_own, _, of = name.rpartition(":")
        try:
            found[name] = fits.run(CASES[of], None if keras_own else cluster)
        except (RuntimeError, ValueError) as error:
            if of not in own_numbers.REFUSED:
                raise
            found[name] = str(error)
    return found
