"""Scripts that each use one feature: `tfdist.fit`, a `train_step` of its own under `tfdist.run`, and an own loop.

usage: python tests/golden/feature_scripts.py fit|loop RESULT.json WORKDIR LOGICAL_DEVICES
       python -m tfdist.run --workdir=WORKDIR tests/golden/feature_scripts.py train_step RESULT.json

Each trains for 12 steps: three passes over 53 examples in batches of 16; the last batch has 5.
"""

import hashlib
import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.golden import parts
from tfdist import config as c

EPOCHS = 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(53, 6)).astype("float32")
Y = np.argmax(X[:, :3], axis=1)


class OwnStep(keras.Sequential):
    """Adds noise to its inputs and the mean square of its outputs to the loss."""

    def __init__(self, layers: list, **options) -> None:
        super().__init__(layers, **options)
        self.noise, self.mean = keras.random.SeedGenerator(11), keras.metrics.Mean(name="total")

    def train_step(self, data: tuple) -> dict[str, tf.Tensor]:
        """Makes one step, with a tape."""
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x + keras.random.normal(tf.shape(x), stddev=0.1, seed=self.noise), training=True)
            loss = self.compute_loss(x, y, logits) + 1e-3 * tf.reduce_mean(tf.square(logits))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def make_layers() -> list:
    """Returns two dense layers with a normalisation and dropout between them."""
    return [
        keras.Input((6,)),
        keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3), name="hidden"),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.8, name="norm"),
        keras.layers.Dropout(0.2, seed=5, name="dropout"),
        keras.layers.Dense(3, name="logits"),
    ]


def cross_entropy() -> keras.losses.Loss:
    """Returns the loss of all scripts."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches() -> tf.data.Dataset:
    """Returns all examples, in batches and in another order for each pass."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(53, seed=1).batch(16)


def fit(workdir: str, devices: str) -> tuple[keras.Model, dict[str, list[float]]]:
    """Trains a compiled model with validation data by `tfdist.fit`."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=int(devices), connect_seconds=240.0), seed=7)
    with cluster.scope():
        model = keras.Sequential(make_layers(), name="fit")
        model.compile(keras.optimizers.Adam(0.02, epsilon=1e-2), cross_entropy(), metrics=["accuracy"])
    validation = tf.data.Dataset.from_tensor_slices((X[:21], Y[:21])).batch(8)
    options = {"epochs": EPOCHS, "verbose": 0, "class_weight": {0: 2.0, 1: 1.0, 2: 0.5}, "workdir": workdir}
    callbacks = [parts.rates(), parts.Stop()]
    history = tfdist.fit(cluster, model, batches(), validation_data=validation, callbacks=callbacks, **options)
    return model, history.history


def train_step() -> tuple[keras.Model, dict[str, list[float]]]:
    """Trains a model with a `train_step` of its own by Keras' `fit`, which `tfdist.run` distributes."""
    keras.utils.set_random_seed(7)
    model = OwnStep(make_layers(), name="train_step")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), cross_entropy())
    validation = {"validation_data": (X[:21], Y[:21]), "validation_batch_size": 8}
    history = model.fit(X, Y, batch_size=16, epochs=EPOCHS, verbose=0, callbacks=[parts.Stop()], **validation)
    return model, history.history


def loop(_: str, devices: str) -> tuple[keras.Model, dict[str, list[float]]]:
    """Trains in a loop of its own."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=int(devices), connect_seconds=240.0), seed=7)
    with cluster.scope():
        model = keras.Sequential(make_layers(), name="loop")
        optimizer, loss_of, mean = keras.optimizers.Adam(0.02, epsilon=1e-2), cross_entropy(), keras.metrics.Mean()

    @tfdist.step
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) + sum(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        mean.update_state(loss)
        return loss

    losses, data = [], batches()
    for _ in range(EPOCHS):
        for batch in tfdist.batches(data):
            train(batch)
        losses.append(float(mean.result()))
        mean.reset_state()
        optimizer.learning_rate.assign(0.7 * optimizer.learning_rate)
    return model, {"loss": losses}


def main(name: str, result: str, *words: str) -> None:
    """Trains, and writes the losses of the epochs and the SHA-256 of the weights."""
    model, history = {"fit": fit, "train_step": train_step, "loop": loop}[name](*words)
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
    losses = {key: values for key, values in sorted(history.items()) if key.endswith("loss")}
    with open(result, "w") as file:
        json.dump({"weights": weights, "losses": losses}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
