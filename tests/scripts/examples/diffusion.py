"""Denoising diffusion with an averaged network, after https://keras.io/examples/generative/ddim."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE, WIDTHS, EMBEDDING, EMA = 16, (8, 16), 8, 0.9
BATCH = 20
MIN_SIGNAL, MAX_SIGNAL = 0.02, 0.95


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(1000.0), EMBEDDING // 2))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, x.dtype)
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def residual_block(x, width):
    residual = x if x.shape[3] == width else layers.Conv2D(width, kernel_size=1)(x)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    return layers.Add()([layers.Conv2D(width, kernel_size=3, padding="same")(x), residual])


def get_network():
    noisy_images, noise_variances = keras.Input((SIZE, SIZE, 3)), keras.Input((1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, EMBEDDING))(noise_variances)
    e = layers.UpSampling2D(size=SIZE, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(WIDTHS[0], kernel_size=1)(noisy_images), e])
    skip = residual_block(x, WIDTHS[0])
    x = layers.AveragePooling2D(pool_size=2)(skip)
    x = residual_block(x, WIDTHS[1])
    x = layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = residual_block(layers.Concatenate()([x, skip]), WIDTHS[0])
    outputs = layers.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], outputs, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def denormalize(self, images):
        return ops.clip(self.normalizer.mean + images * self.normalizer.variance**0.5, 0.0, 1.0)

    def diffusion_schedule(self, diffusion_times):
        start_angle, end_angle = math.acos(MAX_SIGNAL), math.acos(MIN_SIGNAL)
        diffusion_angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(diffusion_angles), ops.cos(diffusion_angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def generate(self, num_images, diffusion_steps):
        images, step_size = keras.random.normal((num_images, SIZE, SIZE, 3)), 1.0 / diffusion_steps
        for step in range(diffusion_steps):
            times = ops.ones((num_images, 1, 1, 1)) - step * step_size
            pred_noises, pred_images = self.denoise(images, *self.diffusion_schedule(times), training=False)
            noise_rates, signal_rates = self.diffusion_schedule(times - step_size)
            images = signal_rates * pred_images + noise_rates * pred_noises
        return self.denormalize(pred_images)

    def losses_of(self, images, training):
        images = self.normalizer(images, training=training)
        noises = keras.random.normal(shape=(BATCH, SIZE, SIZE, 3))[: ops.shape(images)[0]]
        diffusion_times = keras.random.uniform(shape=(BATCH, 1, 1, 1))[: ops.shape(images)[0]]
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=training)
        return self.loss(noises, pred_noises), self.loss(images, pred_images)

    def train_step(self, images):
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.losses_of(images, training=True)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(EMA * ema_weight + (1 - EMA) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        noise_loss, image_loss = self.losses_of(images, training=False)
        self.image_loss_tracker.update_state(image_loss)
        self.noise_loss_tracker.update_state(noise_loss)
        return {m.name: m.result() for m in self.metrics}

    def plot_images(self, epoch=None, logs=None):
        generated_images = self.generate(num_images=2, diffusion_steps=2)
        np.save(f"generated_{epoch}.npy", ops.convert_to_numpy(generated_images))


flowers = np.random.default_rng(0).uniform(0.3, 0.9, (80, SIZE, SIZE, 3)).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(flowers).shuffle(80, seed=4).batch(BATCH, drop_remainder=True)
val_dataset = tf.data.Dataset.from_tensor_slices(flowers[:40]).batch(BATCH, drop_remainder=True)
model = DiffusionModel()
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.003, weight_decay=1e-4), loss=keras.losses.mean_absolute_error
)
model.normalizer.adapt(train_dataset)
history = model.fit(
    train_dataset,
    epochs=4,
    validation_data=val_dataset,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images)],
    verbose=0,
)
