"""Embeddings whose anchors find their positives in the batch, after https://keras.io/examples/vision/metric_learning.

Unchanged: anchors find their positives in the global batch.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE, CLASSES = 12, 8


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        anchors, positives = data
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings) / 0.2
            # The positive of each anchor is the one of its own class.
            sparse_labels = ops.arange(ops.shape(anchor_embeddings)[0])
            loss = self.compute_loss(y=sparse_labels, y_pred=similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(sparse_labels, similarities)
        return {m.name: m.result() for m in self.metrics}


rng = np.random.default_rng(0)
classes = rng.uniform(size=(CLASSES, SIZE, SIZE, 3))


def pairs():
    """A batch: for each class two images."""
    return (classes[None] + rng.normal(0, 0.3, (2, *classes.shape))).astype("float32")


batches = [pairs() for _ in range(6)]
dataset = tf.data.Dataset.from_tensor_slices(tuple(np.concatenate(part) for part in zip(*batches, strict=True)))
inputs = keras.Input((SIZE, SIZE, 3))
x = layers.Conv2D(8, 3, strides=2, activation="relu")(inputs)
x = layers.GlobalAveragePooling2D()(layers.Conv2D(16, 3, strides=2, activation="relu")(x))
model = EmbeddingModel(inputs, layers.UnitNormalization()(layers.Dense(8)(x)))
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3, epsilon=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(dataset.batch(CLASSES), epochs=3, verbose=0)
