# After van den Oord's VQ-VAE, as many write it: the layer of the codes returns codes, table and numbers, and the step
# computes the losses. The table has as many rows as a batch has examples.
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record

CODES = 8


class Quantizer(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(CODES, shape[-1]), initializer="random_normal", name="table")

    def call(self, z):
        distances = ops.sum(ops.square(z[:, None] - self.table[None]), axis=-1)
        index = ops.argmin(distances, axis=1)
        return ops.take(self.table, index, axis=0), self.table * 1.0, index


class VQ(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)])
        self.quantizer, self.decoder = Quantizer(), keras.Sequential([keras.Input((3,)), layers.Dense(6)])

    def train_step(self, x):
        with tf.GradientTape() as tape:
            z = self.encoder(x)
            q, table, index = self.quantizer(z)
            y = self.decoder(z + tf.stop_gradient(q - z))
            loss = tf.reduce_mean(tf.square(x - y)) + tf.reduce_mean(tf.square(tf.stop_gradient(z) - q))
            loss += 0.25 * tf.reduce_mean(tf.square(z - tf.stop_gradient(q))) + 0.1 * tf.reduce_sum(tf.square(table))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        usage = tf.reduce_mean(tf.one_hot(index, CODES), axis=0)
        return {"loss": loss, "perplexity": tf.exp(-tf.reduce_sum(usage * tf.math.log(usage + 1e-10)))}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
model = VQ()
model.compile(keras.optimizers.Adam(0.02))
history = model.fit(tf.data.Dataset.from_tensor_slices(x).batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
