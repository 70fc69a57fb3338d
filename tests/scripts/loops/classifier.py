"""The loop of Keras' guide "Writing a training loop from scratch", in a class: plain, or with tfdist's lines."""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")

SAVED_IN = next((word.removeprefix("--saves=") for word in sys.argv if "--saves=" in word), None)
FAIL_AT = next((int(word.removeprefix("--fail_at=")) for word in sys.argv if "--fail_at=" in word), None)

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y = rng.random((52, 6)).astype("float32"), rng.integers(0, 3, 52)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(0.02)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


class Trainer:
    """Keeps the logits and their spread in attributes."""

    def loss(self, x, y):
        self.logits = model(x, training=True)
        self.spread = tf.math.reduce_variance(self.logits)
        return loss_fn(y, self.logits)

    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y) + 0.1 * self.spread
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        accuracy.update_state(y, self.logits)
        return loss


train = Trainer().train
step = tfdist.step(train) if tfdist else lambda batch: train(*batch)
optimizer.build(model.trainable_variables)
passes = tf.Variable(0)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, passes=passes)
manager = tf.train.CheckpointManager(checkpoint, SAVED_IN, max_to_keep=1) if SAVED_IN else None
if manager:
    checkpoint.restore(manager.latest_checkpoint)
losses, accuracies = [], []
for _epoch in range(int(passes.numpy()), 3):
    for batch in tfdist.batches(data) if tfdist else data:
        losses.append(float(step(batch)))
        if len(losses) == FAIL_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    accuracies.append(float(accuracy.result()))
    accuracy.reset_state()
    optimizer.learning_rate.assign(0.8 * optimizer.learning_rate)
    passes.assign_add(1)
    if manager:
        manager.save()

if __name__ == "__main__":
    from recording import record

    record(losses=losses, accuracies=accuracies, weights=model.get_weights())
