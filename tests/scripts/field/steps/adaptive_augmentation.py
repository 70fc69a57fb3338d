import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class Adaptive(keras.Model):
    """As Keras' GAN with adaptive augmentation: a variable follows a mean over the batch, and is a metric."""

    def __init__(self):
        super().__init__()
        self.discriminator = layers.Dense(1)
        self.probability = keras.Variable(0.5, trainable=False)
        self.loss_tracker, self.mean = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="probability")

    def call(self, x):
        return self.discriminator(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            logits = self(x * (1.0 - self.probability))
            loss = ops.mean(keras.losses.binary_crossentropy(ops.ones_like(logits), logits, from_logits=True))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        accuracy = ops.mean(0.5 * (1.0 + ops.sign(logits)))
        self.probability.assign_add((accuracy - 0.85) / 10.0)
        self.loss_tracker.update_state(loss)
        self.mean.update_state(self.probability, sample_weight=self.probability)
        return {"loss": self.loss_tracker.result(), "probability": self.mean.result()}


keras.utils.set_random_seed(0)
model = Adaptive()
model.compile("adam")
data = tf.data.Dataset.from_tensor_slices(np.random.normal(size=(50, 6)).astype("float32")).batch(12)
history = model.fit(data, epochs=3)
record(history=history.history, weights=model.get_weights())
