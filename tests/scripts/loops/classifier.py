"""The loop of Keras' guide "Writing a training loop from scratch": plain, or with three lines of tfdist's."""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")

WORKDIR = next((word.removeprefix("--workdir=") for word in sys.argv if "--workdir=" in word), None)
FAIL_AT = next((int(word.removeprefix("--fail_at=")) for word in sys.argv if "--fail_at=" in word), None)

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.random((52, 6)).astype("float32"), rng.integers(0, 3, 52)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(0.02)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


def train(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    accuracy.update_state(y, logits)
    return loss


step = tfdist.step(train) if tfdist else lambda batch: train(*batch)
losses, accuracies = [], []
for _epoch in range(3):
    for batch in tfdist.batches(data, workdir=WORKDIR) if tfdist else data:
        losses.append(float(step(batch)))
        if len(losses) == FAIL_AT:
            os.kill(os.getpid(), signal.SIGTERM if "--term" in sys.argv else signal.SIGKILL)
    accuracies.append(float(accuracy.result()))
    accuracy.reset_state()
    optimizer.learning_rate.assign(0.8 * optimizer.learning_rate)

if __name__ == "__main__":
    from recording import record

    record(losses=losses, accuracies=accuracies, weights=model.get_weights())
