import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class Contrastive(keras.Model):
    """Metrics of numbers that are equal on all replicas: of weights, and of the gathered batch, by their sizes."""

    def __init__(self):
        super().__init__()
        self.encoder = layers.Dense(4)
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "weights", "similarity")]

    @property
    def metrics(self):
        return self.trackers

    def call(self, x):
        return self.encoder(layers.Flatten()(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            features = ops.normalize(self(x), axis=1)
            similarities = ops.matmul(features, ops.transpose(features))
            labels = ops.arange(ops.shape(features)[0])
            loss = ops.mean(keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        kernel = tf.convert_to_tensor(weights[0])
        size = tf.cast(tf.size(kernel), tf.float32)
        numbers = (loss, tf.reduce_sum(tf.abs(kernel)) / size, ops.mean(similarities))
        for tracker, number in zip(self.trackers, numbers, strict=True):
            tracker.update_state(number)
        return {tracker.name: tracker.result() for tracker in self.trackers}


keras.utils.set_random_seed(0)
model = Contrastive()
model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3))
data = tf.data.Dataset.from_tensor_slices(np.random.normal(size=(48, 2, 3)).astype("float32"))
history = model.fit(data.batch(12, drop_remainder=True), epochs=3, verbose=0)
record(history=history.history, weights=model.get_weights())
