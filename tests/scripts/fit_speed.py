"""Compares Keras' own fit with `python -m tfdist.run` on one worker: a compiled MLP, and a DCGAN with a train_step.

usage: python tests/scripts/fit_speed.py [--rounds=3]

Both run this file as an unchanged script, in turns, each time in a process of its own; Keras with several values of
steps_per_execution. On Linux also one worker on one core against two workers on a core each, with the same global
batch. The table shows the median milliseconds of a step over the epochs after the first two, and their ratios to
tfdist.run on one worker. Nothing else should run on the machine.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXECUTIONS = (1, 10, 50)
BATCH, STEPS, EPOCHS = 64, 100, 7
RANDOM = np.random.default_rng(0)


class DCGAN(keras.Model):
    """As in https://keras.io/examples/generative/dcgan_overriding_train_step, at 32 x 32 pixels."""

    def __init__(self):
        super().__init__()
        down = [layers.Conv2D(32, 4, strides=2, padding="same"), layers.LeakyReLU(0.2)]
        down += [layers.Conv2D(64, 4, strides=2, padding="same"), layers.LeakyReLU(0.2)]
        self.discriminator = keras.Sequential(
            [keras.Input((32, 32, 3)), *down, layers.Flatten(), layers.Dropout(0.2), layers.Dense(1)]
        )
        up = [layers.Conv2DTranspose(64, 4, strides=2, padding="same"), layers.LeakyReLU(0.2)]
        up += [layers.Conv2DTranspose(32, 4, strides=2, padding="same"), layers.LeakyReLU(0.2)]
        start = [keras.Input((64,)), layers.Dense(8 * 8 * 64), layers.Reshape((8, 8, 64))]
        self.generator = keras.Sequential([*start, *up, layers.Conv2D(3, 5, padding="same", activation="sigmoid")])
        self.seed_generator = keras.random.SeedGenerator(1)

    def compile(self, **keywords):
        super().compile(**keywords)
        self.d_optimizer, self.g_optimizer = keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)
        self.d_loss_metric, self.g_loss_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, real_images):
        size = ops.shape(real_images)[0]
        fake_images = self.generator(keras.random.normal((size, 64), seed=self.seed_generator), training=True)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(ops.concatenate([fake_images, real_images], axis=0), training=True)
            d_loss = self.entropy(labels, predictions)
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = keras.random.normal((size, 64), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = self.entropy(ops.zeros((size, 1)), predictions)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class Times(keras.callbacks.Callback):
    """Notes when each epoch ends."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append(time.perf_counter())


def train(name: str, steps_per_execution: int) -> None:
    """Trains a network as a plain Keras script does, and prints the median time of a step."""
    keras.utils.set_random_seed(0)
    if name == "mlp":
        model = keras.Sequential(
            [keras.Input((784,)), *(layers.Dense(256, activation="relu") for _ in range(2)), layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=steps_per_execution)
        data = (RANDOM.normal(size=(BATCH * STEPS, 784)).astype("float32"), RANDOM.integers(0, 10, BATCH * STEPS))
        steps = STEPS
    else:
        model, steps = DCGAN(), STEPS // 5
        model.compile(steps_per_execution=steps_per_execution)
        data = (RANDOM.uniform(size=(BATCH * steps, 32, 32, 3)).astype("float32"),)
    times = Times()
    model.fit(*data, batch_size=BATCH, epochs=EPOCHS, callbacks=[times], verbose=0)
    epochs = np.diff(times.ends)[1:]
    print(f"milliseconds per step: {1000 * statistics.median(epochs) / steps:.3f}")


def compare(name: str, rounds: int) -> None:
    """Runs the participants in turns, and prints their medians."""
    script = [__file__, f"--train={name}"]
    python, run = [sys.executable], ["-m", "tfdist.run", *script]
    commands = {f"Keras, {k} steps per execution": [*python, *script, f"--steps_per_execution={k}"] for k in EXECUTIONS}
    commands["tfdist.run"] = [*python, *run]
    if shutil.which("taskset"):
        commands["tfdist.run, one core"] = ["taskset", "-c", "0", *python, *run]
        two = ["taskset", "-c", "0,1", *python, "-m", "tfdist.launch", "--workers=2", "--", *run]
        commands["tfdist.run, two workers, two cores"] = two
    found = {participant: [] for participant in commands}
    for _ in range(rounds):
        for participant, command in commands.items():
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[participant].append(float(re.search(r"per step: (\S+)", done.stdout)[1]))
    medians = {participant: statistics.median(values) for participant, values in found.items()}
    ours = medians["tfdist.run"]
    for participant, value in medians.items():
        print(f"{name:8}{participant:36}{value:10.3f} ms  {value / ours:6.2f} of tfdist.run", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=("mlp", "dcgan"))
    parser.add_argument("--steps_per_execution", type=int, default=1)
    flags = parser.parse_args()
    if flags.train:
        train(flags.train, flags.steps_per_execution)
    else:
        for network in ("mlp", "dcgan"):
            compare(network, flags.rounds)
