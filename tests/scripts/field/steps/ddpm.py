import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


# draws: time steps and noise
class DiffusionModel(keras.Model):
    def __init__(self, network, ema_network, timesteps, ema=0.99):
        super().__init__()
        self.network, self.ema_network, self.timesteps, self.ema = network, ema_network, timesteps, ema
        self.alphas = tf.constant(np.cumprod(1.0 - np.linspace(1e-4, 0.1, timesteps)), tf.float32)

    def train_step(self, images):
        batch_size = tf.shape(images)[0]
        t = tf.random.uniform(minval=0, maxval=self.timesteps, shape=(batch_size,), dtype=tf.int64)
        with tf.GradientTape() as tape:
            noise = tf.random.normal(shape=tf.shape(images), dtype=images.dtype)
            a = tf.gather(self.alphas, t)[:, None]
            images_t = tf.sqrt(a) * images + tf.sqrt(1 - a) * noise
            pred_noise = self.network([images_t, t], training=True)
            loss = self.loss(noise, pred_noise)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
            ema_weight.assign(self.ema * ema_weight + (1 - self.ema) * weight)
        return {"noise_loss": loss}


def build():
    image, t = keras.Input((6,)), keras.Input((), dtype="int64")
    h = layers.Concatenate()([layers.Dense(12, "swish")(image), layers.Embedding(10, 4)(t)])
    return keras.Model([image, t], layers.Dense(6)(h))


keras.utils.set_random_seed(0)
network, ema_network = build(), build()
ema_network.set_weights(network.get_weights())
model = DiffusionModel(network, ema_network, timesteps=10)
model.compile(loss=keras.losses.MeanSquaredError(), optimizer=keras.optimizers.Adam(learning_rate=2e-3))
train_ds = tf.data.Dataset.from_tensor_slices(np.random.rand(48, 6).astype("float32")).batch(16, drop_remainder=True)
history = model.fit(train_ds, epochs=2, batch_size=16)
record(loss=history.history["noise_loss"], ema=ema_network.get_weights())
