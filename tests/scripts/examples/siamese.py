"""A Siamese network with a triplet loss, after https://keras.io/examples/vision/siamese_network."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE = 12


def make_embedding():
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(inputs)
    x = layers.Flatten()(layers.Conv2D(8, 3, strides=2, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(8)(layers.Dense(16, activation="relu")(x)), name="Embedding")


class DistanceLayer(layers.Layer):
    """The squared distances of the anchor from the positive and from the negative example."""

    def call(self, anchor, positive, negative):
        ap_distance = ops.sum(tf.square(anchor - positive), -1)
        an_distance = ops.sum(tf.square(anchor - negative), -1)
        return ap_distance, an_distance


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        # One value per example: the tape sums them.
        return tf.maximum(ap_distance - an_distance + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


rng = np.random.default_rng(0)
patterns = rng.uniform(size=(60, SIZE, SIZE, 3))
anchors, positives = (patterns + rng.normal(0, 0.05, patterns.shape) for _ in range(2))
negatives = rng.uniform(size=patterns.shape)
triplets = tuple(images.astype("float32") for images in (anchors, positives, negatives))
train_dataset = tf.data.Dataset.from_tensor_slices(tuple(part[:45] for part in triplets)).batch(16).prefetch(2)
val_dataset = tf.data.Dataset.from_tensor_slices(tuple(part[48:] for part in triplets)).batch(6)
inputs = [keras.Input((SIZE, SIZE, 3)) for _ in range(3)]
embedding = make_embedding()
distances = DistanceLayer()(*(embedding(one) for one in inputs))
model = SiameseModel(keras.Model(inputs, distances))
model.compile(optimizer=keras.optimizers.SGD(0.01))
history = model.fit(train_dataset, epochs=3, validation_data=val_dataset, verbose=0)
