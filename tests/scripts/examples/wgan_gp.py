"""A Wasserstein GAN with a gradient penalty, after https://keras.io/examples/generative/wgan_gp."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
NOISE = 16


def conv_block(x, filters, strides=2, use_dropout=False):
    x = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 5, strides=strides, padding="same")(x))
    return layers.Dropout(0.3)(x) if use_dropout else x


def upsample_block(x, filters, activation, use_bn=True):
    x = layers.UpSampling2D(2)(x)
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return activation(layers.BatchNormalization()(x) if use_bn else x)


def make_discriminator():
    img_input = keras.Input((14, 14, 1))
    x = layers.ZeroPadding2D((1, 1))(img_input)
    x = conv_block(x, 8)
    x = conv_block(x, 16, use_dropout=True)
    return keras.Model(img_input, layers.Dense(1)(layers.Dropout(0.2)(layers.Flatten()(x))))


def make_generator():
    noise = keras.Input((NOISE,))
    x = layers.Dense(4 * 4 * 16, use_bias=False)(noise)
    x = layers.Reshape((4, 4, 16))(layers.LeakyReLU(0.2)(layers.BatchNormalization()(x)))
    x = upsample_block(x, 8, layers.LeakyReLU(0.2))
    x = upsample_block(x, 1, layers.Activation("tanh"), use_bn=False)
    return keras.Model(noise, layers.Cropping2D((1, 1))(x))


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, discriminator_extra_steps=3, gp_weight=10.0):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_steps = discriminator_extra_steps
        self.gp_weight = gp_weight

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, batch_size, real_images, fake_images):
        alpha = tf.random.uniform([batch_size, 1, 1, 1], 0.0, 1.0)
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images = real_images[0]
        batch_size = tf.shape(real_images)[0]
        for _ in range(self.d_steps):
            random_latent_vectors = tf.random.normal(shape=(batch_size, self.latent_dim))
            with tf.GradientTape() as tape:
                fake_images = self.generator(random_latent_vectors, training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(batch_size, real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(zip(d_gradient, self.discriminator.trainable_variables, strict=True))
        random_latent_vectors = tf.random.normal(shape=(batch_size, self.latent_dim))
        with tf.GradientTape() as tape:
            generated_images = self.generator(random_latent_vectors, training=True)
            g_loss = self.g_loss_fn(self.discriminator(generated_images, training=True))
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gen_gradient, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def discriminator_loss(real_img, fake_img):
    return ops.mean(fake_img) - ops.mean(real_img)


def generator_loss(fake_img):
    return -ops.mean(fake_img)


clothes = np.random.default_rng(0).uniform(-1, 1, (120, 14, 14, 1)).astype("float32")
model = WGAN(make_discriminator(), make_generator(), latent_dim=NOISE)
model.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.001, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.001, beta_1=0.5, beta_2=0.9),
    g_loss_fn=generator_loss,
    d_loss_fn=discriminator_loss,
)
history = model.fit(clothes, batch_size=24, epochs=3, verbose=0)
