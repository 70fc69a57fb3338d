# After keras.io's "Denoising Diffusion Implicit Models": a normaliser that was adapted, rates of noise, an average of
# the network that test_step uses, and generation after training.

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class DDIM(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.normalizer, self.network, self.ema_network = (
            layers.Normalization(),
            network,
            keras.models.clone_model(network),
        )
        self.ema_network.set_weights(network.get_weights())
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def compile(self, **options):
        super().compile(**options)
        self.noise_loss, self.image_loss = keras.metrics.Mean(name="n_loss"), keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss, self.image_loss]

    def denoise(self, noisy, rates, training):
        network = self.network if training else self.ema_network
        noise = network([noisy, rates[0] ** 2], training=training)
        return noise, (noisy - rates[0] * noise) / rates[1]

    def mixed(self, images):
        seed = tf.stack([self.calls.value, 3])
        images, noise = self.normalizer(images, training=True), tf.random.stateless_normal(tf.shape(images), seed)
        angle = 0.3 + tf.random.stateless_uniform([tf.shape(images)[0], 1], seed + 1)
        rates = ops.sin(angle), ops.cos(angle)
        self.calls.assign_add(1)
        return images, noise, rates, rates[1] * images + rates[0] * noise

    def train_step(self, images):
        images, noise, rates, noisy = self.mixed(images)
        with tf.GradientTape() as tape:
            found, image = self.denoise(noisy, rates, training=True)
            loss = self.loss(noise, found)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.network.trainable_weights), self.network.trainable_weights)
        )
        self.noise_loss.update_state(loss)
        self.image_loss.update_state(self.loss(images, image))
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
            ema_weight.assign(0.9 * ema_weight + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        images, noise, rates, noisy = self.mixed(images)
        found, image = self.denoise(noisy, rates, training=False)
        self.noise_loss.update_state(self.loss(noise, found))
        self.image_loss.update_state(self.loss(images, image))
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 5).astype("float32")
inputs = [keras.Input((5,)), keras.Input((1,))]
h = layers.Dense(8, "swish")(layers.Concatenate()(inputs))
model = DDIM(keras.Model(inputs, layers.Dense(5, kernel_initializer="zeros")(h)))
model.normalizer.adapt(x)
model.compile(optimizer=keras.optimizers.AdamW(0.01), loss=keras.losses.mean_absolute_error)
data = tf.data.Dataset.from_tensor_slices(x).batch(8)
history = model.fit(data, epochs=2, validation_data=data.take(2))
record(history=history.history, tested=model.evaluate(data), weights=model.ema_network.get_weights())
