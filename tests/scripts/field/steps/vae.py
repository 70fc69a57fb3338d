import keras
import numpy as np
import tensorflow as tf
from keras import ops
from recording import record


# draws: the latent
class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(6)])
        self.total, self.kl = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="kl")
        self.seed = keras.random.SeedGenerator(3)

    @property
    def metrics(self):
        return [self.total, self.kl]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=1)
            z = mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seed)
            fit = ops.mean(ops.sum((data - self.decoder(z)) ** 2, axis=1))
            kl = ops.mean(ops.sum(-0.5 * (1 + log_var - mean**2 - ops.exp(log_var)), axis=1))
            loss = fit + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.total.update_state(loss)
        self.kl.update_state(kl)
        return {"loss": self.total.result(), "kl": self.kl.result()}


keras.utils.set_random_seed(0)
vae = VAE()
vae.compile(keras.optimizers.Adam(0.005))
history = vae.fit(np.random.rand(64, 6).astype("float32"), epochs=3, batch_size=16)
record(loss=history.history["loss"])
