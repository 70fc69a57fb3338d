import keras
import numpy as np
import tensorflow as tf
from recording import record


# draws: latent vectors
class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.judge = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
        self.seed = keras.random.SeedGenerator(1)
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        size = keras.ops.shape(real)[0]
        fake = self.maker(keras.random.normal((size, 3), seed=self.seed))
        both = keras.ops.concatenate([fake, real], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones((size, 1)), keras.ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.judge(both))
        gradients = tape.gradient(d_loss, self.judge.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.judge.trainable_weights))
        latent = keras.random.normal((size, 3), seed=self.seed)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(keras.ops.zeros((size, 1)), self.judge(self.maker(latent)))
        gradients = tape.gradient(g_loss, self.maker.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.maker.trainable_weights))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


keras.utils.set_random_seed(0)
data = tf.data.Dataset.from_tensor_slices(np.random.rand(64, 4).astype("float32")).batch(16)
gan = GAN()
gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
history = gan.fit(data, epochs=3)
record(history=history.history)
