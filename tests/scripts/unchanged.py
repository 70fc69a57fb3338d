"""A Keras script that does not know of tfdist: a classifier with callbacks and files, then a GAN.

usage: python tests/scripts/unchanged.py --out=DIR [--fail=HOW]
"""

import argparse
import os
import pathlib
import signal

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--fail", default="")
FLAGS = parser.parse_args()

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(45, 6)).astype("float32")
LABELS = (X[:, 0] > 0).astype("int32")


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(6)])
        self.seen = tf.Variable(0)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss = keras.metrics.Mean(name="d_loss")

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.softplus(self.discriminator(self.generator(noise))))
            loss += ops.mean(ops.softplus(-self.discriminator(real)))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.d_loss.update_state(loss)
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.softplus(-self.discriminator(self.generator(noise))))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.seen.assign_add(1)
        return {"d_loss": self.d_loss.result(), "g_loss": loss}


class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        # SIGKILL, by which --fail=killed ends, loses what is not flushed.
        print(f"epoch {epoch}: {self.model.predict(X[:2], verbose=0).shape}", flush=True)


class Kill(keras.callbacks.Callback):
    """With --fail=killed, kills every worker in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if FLAGS.fail == "killed" and (self.epoch, batch) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    keras.utils.set_random_seed(1)
    if FLAGS.fail == "connect":
        __import__("tfdist").connect()
    FLAGS.out.mkdir(exist_ok=True)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    callbacks = [keras.callbacks.ModelCheckpoint(FLAGS.out / "best.keras", monitor="loss"), Watch()]
    history = model.fit(X, LABELS, batch_size=8, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
    if FLAGS.fail == "here":
        raise KeyError("the script's own error")
    model.save(FLAGS.out / "model.keras")
    loaded = keras.models.load_model(FLAGS.out / "model.keras")
    evaluated = loaded.evaluate(X, LABELS, verbose=0)
    predicted = model.predict(X, verbose=0)
    gan = GAN()
    gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1))
    data = tf.data.Dataset.from_tensor_slices((X, X[::-1])).batch(8)
    gan_history = gan.fit(data, epochs=2, verbose=0, callbacks=[Kill()])
    print("steps", int(gan.seen.numpy()))
    with open(FLAGS.out / "losses.txt", "w") as file:
        print(history.history, gan_history.history, evaluated, file=file)
    weights = {f"weight{index}": one for index, one in enumerate([*model.get_weights(), *gan.get_weights()])}
    np.savez(FLAGS.out / "weights.npz", predicted=predicted, evaluated=evaluated, **weights)


if __name__ == "__main__":
    main()
