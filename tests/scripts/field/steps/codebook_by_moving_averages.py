import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class EMAQuantizer(keras.Model):
    """VQ-VAE whose codebook is a moving average of what is assigned to it."""

    def __init__(self, codes=6, dim=3, decay=0.9):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((7,)), layers.Dense(dim)])
        self.decoder = keras.Sequential([keras.Input((dim,)), layers.Dense(7)])
        start = np.random.default_rng(1).normal(size=(dim, codes)).astype("float32")
        self.codes = self.add_weight(shape=(dim, codes), initializer="zeros", trainable=False, name="codes")
        self.counts = self.add_weight(shape=(codes,), initializer="ones", trainable=False, name="counts")
        self.sums = self.add_weight(shape=(dim, codes), initializer="zeros", trainable=False, name="sums")
        self.codes.assign(start)
        self.sums.assign(start)
        self.number, self.decay = codes, decay

    def train_step(self, x):
        with tf.GradientTape() as tape:
            z = self.encoder(x, training=True)
            distances = tf.reduce_sum(z**2, 1, keepdims=True) - 2 * z @ self.codes + tf.reduce_sum(self.codes**2, 0)
            chosen = tf.one_hot(tf.argmin(distances, axis=1), self.number)
            q = tf.matmul(chosen, self.codes, transpose_b=True)
            commitment = tf.reduce_mean((z - tf.stop_gradient(q)) ** 2)
            fit = tf.reduce_mean((self.decoder(z + tf.stop_gradient(q - z)) - x) ** 2)
            loss = fit + 0.25 * commitment
        variables = self.encoder.trainable_variables + self.decoder.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.counts.assign(self.decay * self.counts + (1 - self.decay) * tf.reduce_sum(chosen, axis=0))
        self.sums.assign(self.decay * self.sums + (1 - self.decay) * tf.matmul(z, chosen, transpose_a=True))
        self.codes.assign(self.sums / (self.counts + 1e-5))
        return {"fit": fit, "commitment": commitment}


keras.utils.set_random_seed(0)
model = EMAQuantizer()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(np.random.rand(34, 7).astype("float32"), epochs=2, batch_size=12, shuffle=False)
record(history=history.history, codes=model.codes.numpy(), counts=model.counts.numpy())
