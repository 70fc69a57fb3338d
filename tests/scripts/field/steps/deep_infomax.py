# After Deep InfoMax and Deep CCA: pairs with the next row as negatives, and correlations by a Cholesky factor.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def correlation(a, b, eps=1e-2):
    n = tf.cast(tf.shape(a)[0], tf.float32)
    a, b = a - tf.reduce_mean(a, axis=0), b - tf.reduce_mean(b, axis=0)
    unit = eps * tf.eye(a.shape[1])
    s11, s22, s12 = (tf.matmul(p, q, transpose_a=True) / n for p, q in ((a, a), (b, b), (a, b)))
    white = tf.linalg.cholesky(tf.linalg.inv(s11 + unit)), tf.linalg.cholesky(tf.linalg.inv(s22 + unit))
    t = tf.matmul(tf.matmul(white[0], s12, transpose_a=True), white[1])
    return tf.linalg.trace(tf.matmul(t, t, transpose_a=True))


class InfoMax(keras.Model):
    def __init__(self):
        super().__init__()
        self.local = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)])
        self.whole = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
        self.critic = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu"), layers.Dense(1)])

    def train_step(self, data):
        x, other = data
        with tf.GradientTape() as tape:
            a, b = self.local(x), self.whole(self.local(other))
            together = tf.concat([tf.concat([a, b], axis=1), tf.concat([tf.roll(a, 1, axis=0), b], axis=1)], axis=0)
            joint, marginal = tf.split(self.critic(together), 2)
            mi = -tf.reduce_mean(tf.nn.softplus(-joint)) - tf.reduce_mean(tf.nn.softplus(marginal))
            corr = correlation(a, b)
            loss = -mi - 0.1 * corr
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"mi": mi, "corr": corr}


keras.utils.set_random_seed(0)
x = np.random.rand(34, 6).astype("float32")
model = InfoMax()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(x, x[:, ::-1] ** 2, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=[w.numpy() for w in model.weights])
