"""Compares Keras' own fit with `python -m tfdist.run` on one worker: compiled networks, and a DCGAN with a train_step.

usage: python tests/scripts/fit_speed.py [--rounds=3] [--networks=mlp:64,wide:1024,dcgan:64] [--executions=1,10,50]
           [--precision=float32] [--workers_only]

The networks, of Keras' layers: two perceptrons, mlp and wide; dcgan; resnet, a ResNet-20; transformer, for images.

Both run this file as an unchanged script, in turn, each time in a process of its own; Keras with several values of
steps_per_execution. On Linux also one worker on one core against two workers on a core each, with the same global
batch; with --workers_only nothing else. The table shows the milliseconds of a step, wall-clock and processor time of
the chief, each in the epoch in which it was shortest, without the first two epochs: other programs on the machine
disturb this value least. The ratios are to the first line of a network.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EPOCHS = 7
# Networks and their steps per epoch.
STEPS = {"mlp": 100, "wide": 20, "dcgan": 20, "resnet": 10, "transformer": 10}
# The hidden layers of a perceptron: two of this width.
WIDTHS = {"mlp": 256, "wide": 1024}
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


def resnet20() -> keras.Model:
    """Returns the network of arXiv 1512.03385 for CIFAR, with 1x1 convolutions in its shortcuts."""

    def convolve(x, filters: int, size: int, strides: int):
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolve(inputs, 16, 3, 1))
    for index, filters in enumerate([16] * 3 + [32] * 3 + [64] * 3):
        strides = 2 if index in (3, 6) else 1
        y = convolve(layers.ReLU()(convolve(x, filters, 3, strides)), filters, 3, 1)
        x = layers.ReLU()(y + (x if strides == 1 else convolve(x, filters, 1, strides)))
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling2D()(x)))


def transformer(width: int = 256) -> keras.Model:
    """Returns a vision transformer (arXiv 2010.11929): 64 patches of 4x4 pixels, four layers of four heads."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, width))(layers.Conv2D(width, 4, strides=4)(inputs))
    for _ in range(4):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x += layers.MultiHeadAttention(4, width // 4)(y, y)
        y = layers.Dense(4 * width, activation=keras.activations.gelu)(layers.LayerNormalization(epsilon=1e-6)(x))
        x += layers.Dense(width)(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(x))


def perceptron(width: int) -> keras.Model:
    """Returns two hidden layers of a width."""
    hidden = (layers.Dense(width, activation="relu") for _ in range(2))
    return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])


class Times(keras.callbacks.Callback):
    """Notes when each epoch ends: wall-clock and processor seconds."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append((time.perf_counter(), time.process_time()))


def train(name: str, batch: int, steps_per_execution: int) -> None:
    """Trains a network as a plain Keras script does, and prints the times of a step in the fastest epochs."""
    keras.utils.set_random_seed(0)
    steps = STEPS[name]
    if name == "dcgan":
        model = DCGAN()
        model.compile(steps_per_execution=steps_per_execution)
        data = (RANDOM.uniform(size=(batch * steps, 32, 32, 3)).astype("float32"),)
    else:
        makers = {"resnet": resnet20, "transformer": transformer}
        model = makers[name]() if name in makers else perceptron(WIDTHS[name])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=steps_per_execution)
        inputs = RANDOM.normal(size=(batch * steps, *model.input_shape[1:])).astype("float32")
        data = (inputs, RANDOM.integers(0, 10, batch * steps))
    times = Times()
    model.fit(*data, batch_size=batch, epochs=EPOCHS, callbacks=[times], verbose=0)
    wall, processor = 1000 * np.diff(times.ends, axis=0)[1:].min(axis=0) / steps
    print(f"milliseconds per step: {wall:.3f} {processor:.3f}")


def run(commands: list[tuple[list[str], dict[str, str]]]) -> np.ndarray:
    """Runs processes with more variables in their environment at the same time; returns what the first one printed."""
    started = [
        subprocess.Popen(line, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line, more in commands
    ]
    outputs = [process.communicate()[0] for process in started]
    assert not any(process.returncode for process in started), outputs
    found = re.search(r"per step: (\S+) (\S+)", outputs[0])
    return np.array([float(found[1]), float(found[2])])


def compare(name: str, batch: int, flags: argparse.Namespace) -> None:
    """Runs the participants in turn, and prints their shortest times."""
    script = [__file__, f"--train={name}:{batch}", f"--precision={flags.precision}"]
    plain, ours = [sys.executable, *script], [sys.executable, "-m", "tfdist.run", *script]

    def two_workers() -> list[tuple[list[str], dict[str, str]]]:
        from tfdist.launch import local_workers  # Here: the script that is compared does not know of tfdist.

        sockets = local_workers.reserve_ports(2)
        addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        environments = local_workers.environments({}, addresses, [()] * 2)
        return [(["taskset", "-c", str(rank), *ours], more) for rank, more in enumerate(environments)]

    participants = {"tfdist.run": lambda: [(ours, {})]}
    for k in map(int, flags.executions.split(",")):
        participants[f"Keras, {k} steps per execution"] = lambda k=k: [([*plain, f"--steps_per_execution={k}"], {})]
    if flags.workers_only:
        participants = {}
    if shutil.which("taskset"):
        participants["tfdist.run, one core"] = lambda: [(["taskset", "-c", "0", *ours], {})]
        participants["tfdist.run, two workers, two cores"] = two_workers
    found = {participant: [] for participant in participants}
    for _ in range(flags.rounds):
        for participant, commands in participants.items():
            found[participant].append(run(commands()))
    shortest = {participant: np.min(times, axis=0) for participant, times in found.items()}
    first = next(iter(shortest.values()))
    for participant, (wall, processor) in shortest.items():
        ratios = f"{wall / first[0]:6.2f} times {processor / first[1]:6.2f} times"
        print(f"{name:12}{batch:6} {participant:36}{wall:9.3f} ms, processor {processor:9.3f} ms {ratios}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", default="mlp:64,wide:1024,dcgan:64", help="NETWORK:GLOBAL_BATCH, ...")
    parser.add_argument("--executions", default="1,10,50", help="Keras' steps_per_execution")
    parser.add_argument("--precision", default="float32", help="policy of Keras' layers")
    parser.add_argument("--workers_only", action="store_true")
    parser.add_argument("--train", help="NETWORK:GLOBAL_BATCH")
    parser.add_argument("--steps_per_execution", type=int, default=1)
    flags = parser.parse_args()
    if flags.train:
        keras.mixed_precision.set_global_policy(flags.precision)
        network, size = flags.train.split(":")
        train(network, int(size), flags.steps_per_execution)
    else:
        for one in flags.networks.split(","):
            network, size = one.split(":")
            compare(network, int(size), flags)
