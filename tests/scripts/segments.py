"""A script for --recompute_mb: `fit`, also with a `train_step` of the model's own, and what is refused.

    python -m tfdist.run --recompute_mb=0.3 segments.py CASE OUT [KILLED]

KILLED: a file; if it is not there, the process makes it and kills itself after the second epoch.
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(3)

    def call(self, x):
        return self.out(keras.ops.reshape(x, (-1, 1024)))


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
            Path(sys.argv[3]).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def network(kind=keras.Sequential):
    layers = [keras.Input((8, 8, 16))]
    for _ in range(6):
        layers += [keras.layers.Conv2D(16, 3, padding="same", activation="relu"), keras.layers.Dropout(0.2)]
    return kind([*layers, keras.layers.Flatten(), keras.layers.Dense(3)])


def train(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, **options)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(96, 8, 8, 16)).astype("float32"), random.integers(0, 3, 96)
    return model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Kill()]).history


keras.utils.set_random_seed(3)
case, out = sys.argv[1:3]
if case == "refused":
    found = {}
    for name, kind, options in (
        ("XLA", keras.Sequential, {"jit_compile": True}),
        ("eager", keras.Sequential, {"run_eagerly": True}),
        ("budget", keras.Sequential, {}),
        ("model", lambda layers: Subclass(), {}),
    ):
        try:
            train(network(kind), **options)
        except ValueError as error:
            found[name] = str(error)
else:
    if case == "float16":
        keras.mixed_precision.set_global_policy("mixed_float16")
    model = network(OwnStep if case == "own step" else keras.Sequential)
    found = [train(model), [array.tolist() for array in model.get_weights()]]
Path(out).write_text(json.dumps(found))
