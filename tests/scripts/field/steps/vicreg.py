import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def off_diagonal(m):
    return tf.reduce_sum(tf.square(m)) - tf.reduce_sum(tf.square(tf.linalg.diag_part(m)))


def vicreg(za, zb):
    similarity = tf.reduce_mean(tf.square(za - zb))
    n = tf.cast(tf.shape(za)[0], tf.float32)
    za, zb = za - tf.reduce_mean(za, axis=0), zb - tf.reduce_mean(zb, axis=0)
    std = sum(tf.reduce_mean(tf.nn.relu(1 - tf.sqrt(tf.math.reduce_variance(z, axis=0) + 1e-4))) for z in (za, zb))
    cov = sum(off_diagonal(tf.matmul(z, z, transpose_a=True) / (n - 1)) / z.shape[1] for z in (za, zb))
    return 25.0 * similarity + 25.0 * std + cov


class VICReg(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), layers.Dense(12, "relu"), layers.Dense(5)])

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = vicreg(self.net(a), self.net(b))
        grads = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(grads, self.net.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x = np.random.rand(40, 6).astype("float32")
model = VICReg()
model.compile("sgd")
history = model.fit(x, x[:, ::-1].copy(), epochs=2, batch_size=20, shuffle=False)
record(weights=model.get_weights())
