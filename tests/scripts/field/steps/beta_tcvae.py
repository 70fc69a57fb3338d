# After Chen et al.'s beta-TCVAE: q(z) is estimated from all pairs of the batch and the size of the data set.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

SIZE = 33


def log_density(z, mean, log_var):
    return -0.5 * (tf.math.log(2 * np.pi) + log_var + tf.square(z - mean) * tf.exp(-log_var))


class TCVAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(6)])
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("loss", "tc", "mi")}

    @property
    def metrics(self):
        return list(self.trackers.values())

    def losses_of(self, x):
        mean, log_var = tf.split(self.encoder(x), 2, axis=1)
        z = mean + tf.exp(0.5 * log_var) * tf.random.stateless_normal(tf.shape(mean), seed=[3, 4])
        error = tf.reduce_mean(tf.reduce_sum(tf.square(x - self.decoder(z)), axis=1))
        pairs = log_density(z[:, None], mean[None], log_var[None])
        scale = tf.math.log(SIZE * tf.cast(tf.shape(x)[0], tf.float32))
        log_qz = tf.reduce_logsumexp(tf.reduce_sum(pairs, axis=2), axis=1) - scale
        log_product = tf.reduce_sum(tf.reduce_logsumexp(pairs, axis=1) - scale, axis=1)
        log_qzx = tf.reduce_sum(log_density(z, mean, log_var), axis=1)
        log_pz = tf.reduce_sum(log_density(z, 0.0, tf.zeros_like(z)), axis=1)
        mi, tc, kl = (tf.reduce_mean(one) for one in (log_qzx - log_qz, log_qz - log_product, log_product - log_pz))
        return {"loss": error + mi + 6.0 * tc + kl, "tc": tc, "mi": mi}

    def train_step(self, x):
        with tf.GradientTape() as tape:
            found = self.losses_of(x)
        self.optimizer.apply(tape.gradient(found["loss"], self.trainable_weights), self.trainable_weights)
        return {name: self.trackers[name](value) for name, value in found.items()}

    def test_step(self, x):
        return {name: self.trackers[name](value) for name, value in self.losses_of(x).items()}


keras.utils.set_random_seed(0)
x = np.random.rand(SIZE, 6).astype("float32")
model = TCVAE()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(
    tf.data.Dataset.from_tensor_slices(x).batch(8),
    epochs=2,
    validation_data=tf.data.Dataset.from_tensor_slices(x[:9]).batch(4),
)
record(
    history=history.history,
    tested=model.evaluate(tf.data.Dataset.from_tensor_slices(x).batch(16)),
    weights=model.get_weights(),
)
