"""Trains small models with losses and metrics that see the whole batch: by Keras on one device, and by tfdist."""

import functools

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


LOSSES = {
    "bce_and_dice": lambda true, predicted: bce(true, predicted) + dice(true, predicted),
    "Dice": keras.losses.Dice(),
    "Tversky": keras.losses.Tversky(),
    "masked": masked,
    "contrastive": contrastive,
    "sum_of_batch": lambda true, predicted: ops.sum(ops.square(true - predicted)),
    "Nested": Nested(),
    "OwnCall": OwnCall(),
    "axis_0": keras.losses.CosineSimilarity(axis=0),
    "reduced_to_sum": keras.losses.Dice(reduction="sum"),
}


def dense():
    hidden = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(4, activation="sigmoid")])


class Measures(keras.layers.Layer):
    """Updates a metric in its call with a mean of the batch. Shards may have unequal sizes."""

    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")

    def call(self, x):
        self.size.update_state(keras.ops.mean(keras.ops.abs(x)))
        return x


def measured():
    return keras.Sequential([dense(), Measures()])


class OwnStep(keras.Model):
    """Calls losses and metrics in a step of its own, one of them on twice the examples."""

    def __init__(self):
        super().__init__()
        self.network, self.largest = dense(), MaxError()
        self.nested, self.tracker = Nested(), keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.nested(y, predicted) + keras.losses.Tversky()(y, predicted) + bce(y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        self.largest.update_state(y, predicted)
        return {"loss": self.tracker.result(), "max_error": self.largest.result()}


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


class OwnLoss(keras.Model):
    """Overrides compute_loss, and calls losses in it."""

    def __init__(self):
        super().__init__()
        self.network = dense()

    def call(self, x):
        return self.network(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + 0.5 * LOSSES["Nested"](y, y_pred)


def two_outputs():
    x = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    return keras.Model(x, [keras.layers.Dense(4, activation="sigmoid", name=name)(hidden) for name in ("a", "b")])


def of_words():
    words = keras.layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential([keras.Input((None,), dtype="int32"), words, keras.layers.Dense(1, activation="sigmoid")])


class Masked(keras.losses.Loss):
    """Receives Keras' mask with the predictions."""

    def call(self, true, predicted):
        return ops.mean(ops.square(true - predicted), axis=-1) * ops.sum(ops.ones_like(true[:, 0]))


class WithScale(keras.Model):
    """Its loss uses a weight that is trained."""

    def __init__(self):
        super().__init__()
        self.network = dense()
        self.scale = self.add_weight(name="scale", initializer="ones")

    def call(self, x):
        return self.network(x)


def with_scale():
    model = WithScale()
    model.build((None, 6))
    return model, {"loss": lambda true, predicted: dice(true, model.scale * predicted) + ops.square(model.scale)}


def metric_of_batch(true, predicted):
    return dice(true, predicted)


def f1_score():
    """Has one value per class."""
    return keras.metrics.F1Score(threshold=0.5)


CASES = {name: (dense, {"loss": loss}) for name, loss in LOSSES.items()} | {
    "weights_in_the_loss": (with_scale, {}),
    "own_step": (OwnStep, {}),
    **{name: (functools.partial(ChangesGradients, change), {}) for name, change in CHANGES.items()},
    **{name: (build, {}) for name, build in own_numbers.CASES.items()},
    "by_hand": (UpdatesByHand, {}),
    "own_loss": (OwnLoss, {"loss": LOSSES["Dice"]}),
    "two_outputs": (two_outputs, {"loss": [LOSSES["Dice"], "mse"], "loss_weights": [0.3, 2.0]}),
    "mask": (of_words, {"loss": Masked()}),
    "mean_with_mask": (of_words, {"loss": "mse"}),
    "mean_with_weights": (dense, {"loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")}),
    "xla": (dense, {"loss": LOSSES["bce_and_dice"], "jit_compile": True, "metrics": [MaxError]}),
    "xla_with_mask": (of_words, {"loss": "mse", "jit_compile": True}),
    "metrics": (measured, {"loss": "mse", "metrics": [MaxError, metric_of_batch, "mae", f1_score]}),
    "weighted": (dense, {"loss": Nested(), "metrics": ["mae"]}),
}


# Without a loss in `compile`, nothing can be evaluated.
OWN_STEPS = ("own_step", "by_hand", *CHANGES, *own_numbers.CASES)


def data_of(name):
    if name in ("mask", "mean_with_mask", "xla_with_mask"):
        data = WORDS, np.repeat(Y[:, :1, None], 5, axis=1)
        return (*data, np.repeat(WEIGHTS[:, None], 5, axis=1)) if name == "mean_with_mask" else data
    if name == "two_outputs":
        return X, [Y, 1 - Y]
    return (X, Y, WEIGHTS) if name in ("mean_with_weights", "weighted") else (X, Y)


def train(name, cluster):
    keras.utils.set_random_seed(1)
    build, options = CASES[name]
    model = build()
    if isinstance(model, tuple):
        model, options = model
    options = dict(options)
    if "metrics" in options:
        options["metrics"] = [one() if one in (MaxError, f1_score) else one for one in options["metrics"]]
    model.compile(keras.optimizers.SGD(0.1), **options)
    x, y, *weights = data_of(name)
    weights = weights[0] if weights else None
    if cluster is None:
        history = model.fit(x, y, sample_weight=weights, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        values = [] if name in OWN_STEPS else model.evaluate(x, y, batch_size=7, verbose=0)
    else:
        history = tfdist.fit(
            cluster, model, x, y, sample_weight=weights, batch_size=8, epochs=2, shuffle=False, verbose=0
        ).history
        values = [] if name in OWN_STEPS else tfdist.evaluate(cluster, model, x, y, batch_size=7, verbose=0)
    # Those of single outputs' losses differ from Keras'.
    results = {} if name in (*OWN_STEPS, "two_outputs") else model.get_metrics_result()
    weights = [weight.tolist() for weight in model.get_weights()]
    history = {name: np.asarray(value).tolist() for name, value in history.items()}
    values = [np.ravel(value) for value in (*np.atleast_1d(np.asarray(values, dtype=object)), *results.values())]
    return {"history": history, "values": np.concatenate([[], *values]).tolist(), "weights": weights}


def measure(names, devices):
    """Trains the cases; returns their results by name. Names that begin with "keras:" are for Keras' own fit."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=devices, connect_seconds=240))
    keras_own = {name: train(name.removeprefix("keras:"), None) for name in names if name.startswith("keras:")}
    with cluster.scope():
        return keras_own | {name: train(name, cluster) for name in names if name not in keras_own}
