"""A GAN that generates digits of a class, after https://keras.io/examples/generative/conditional_gan."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE, CLASSES, LATENT = 12, 4, 8

discriminator = keras.Sequential(
    [
        keras.Input((SIZE, SIZE, 1 + CLASSES)),
        layers.Conv2D(8, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((LATENT + CLASSES,)),
        layers.Dense(3 * 3 * (LATENT + CLASSES)),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((3, 3, LATENT + CLASSES)),
        layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
    ]
)


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self):
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def latent_vectors(self, batch_size, one_hot_labels):
        noise = keras.random.normal(shape=(batch_size, self.latent_dim), seed=self.seed_generator)
        return ops.concatenate([noise, one_hot_labels], axis=1)

    def train_step(self, data):
        real_images, one_hot_labels = data
        # The labels as more channels of the images.
        image_one_hot_labels = one_hot_labels[:, :, None, None]
        image_one_hot_labels = ops.repeat(image_one_hot_labels, repeats=[SIZE * SIZE])
        image_one_hot_labels = ops.reshape(image_one_hot_labels, (-1, SIZE, SIZE, CLASSES))
        batch_size = ops.shape(real_images)[0]

        generated_images = self.generator(self.latent_vectors(batch_size, one_hot_labels))
        fake_image_and_labels = ops.concatenate([generated_images, image_one_hot_labels], -1)
        real_image_and_labels = ops.concatenate([real_images, image_one_hot_labels], -1)
        combined_images = ops.concatenate([fake_image_and_labels, real_image_and_labels], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))

        misleading_labels = ops.zeros((batch_size, 1))
        latent_vectors = self.latent_vectors(batch_size, one_hot_labels)
        with tf.GradientTape() as tape:
            fake_images = self.generator(latent_vectors)
            predictions = self.discriminator(ops.concatenate([fake_images, image_one_hot_labels], -1))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))

        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {"g_loss": self.gen_loss_tracker.result(), "d_loss": self.disc_loss_tracker.result()}


rng = np.random.default_rng(0)
labels = np.arange(120) % CLASSES
digits = (rng.uniform(size=(CLASSES, SIZE, SIZE, 1))[labels] > 0.5).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((digits, keras.utils.to_categorical(labels, CLASSES)))
dataset = dataset.shuffle(buffer_size=120, seed=3).batch(24)
model = ConditionalGAN(discriminator=discriminator, generator=generator, latent_dim=LATENT)
model.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.001),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.001),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = model.fit(dataset, epochs=4, verbose=0)
