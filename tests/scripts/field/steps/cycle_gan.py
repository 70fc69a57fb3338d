import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

adv_loss_fn = keras.losses.MeanSquaredError()


def generator_loss_fn(fake):
    return adv_loss_fn(tf.ones_like(fake), fake)


def discriminator_loss_fn(real, fake):
    return (adv_loss_fn(tf.ones_like(real), real) + adv_loss_fn(tf.zeros_like(fake), fake)) * 0.5


class CycleGan(keras.Model):
    def __init__(self, gen_G, gen_F, disc_X, disc_Y, lambda_cycle=10.0, lambda_identity=0.5):
        super().__init__()
        self.gen_G, self.gen_F, self.disc_X, self.disc_Y = gen_G, gen_F, disc_X, disc_Y
        self.lambda_cycle, self.lambda_identity = lambda_cycle, lambda_identity

    def call(self, inputs):
        return self.gen_G(inputs)

    def compile(self, gen_G_optimizer, gen_F_optimizer, disc_X_optimizer, disc_Y_optimizer, gen_loss_fn, disc_loss_fn):
        super().compile()
        self.gen_G_optimizer, self.gen_F_optimizer = gen_G_optimizer, gen_F_optimizer
        self.disc_X_optimizer, self.disc_Y_optimizer = disc_X_optimizer, disc_Y_optimizer
        self.generator_loss_fn, self.discriminator_loss_fn = gen_loss_fn, disc_loss_fn
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.identity_loss_fn = keras.losses.MeanAbsoluteError()

    def train_step(self, batch_data):
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = self.gen_G(real_x, training=True), self.gen_F(real_y, training=True)
            cycled_x, cycled_y = self.gen_F(fake_y, training=True), self.gen_G(fake_x, training=True)
            same_x, same_y = self.gen_F(real_x, training=True), self.gen_G(real_y, training=True)
            disc_real_x, disc_fake_x = self.disc_X(real_x, training=True), self.disc_X(fake_x, training=True)
            disc_real_y, disc_fake_y = self.disc_Y(real_y, training=True), self.disc_Y(fake_y, training=True)
            gen_G_loss, gen_F_loss = self.generator_loss_fn(disc_fake_y), self.generator_loss_fn(disc_fake_x)
            cycle_loss_G = self.cycle_loss_fn(real_y, cycled_y) * self.lambda_cycle
            cycle_loss_F = self.cycle_loss_fn(real_x, cycled_x) * self.lambda_cycle
            id_loss_G = self.identity_loss_fn(real_y, same_y) * self.lambda_cycle * self.lambda_identity
            id_loss_F = self.identity_loss_fn(real_x, same_x) * self.lambda_cycle * self.lambda_identity
            total_loss_G = gen_G_loss + cycle_loss_G + id_loss_G
            total_loss_F = gen_F_loss + cycle_loss_F + id_loss_F
            disc_X_loss = self.discriminator_loss_fn(disc_real_x, disc_fake_x)
            disc_Y_loss = self.discriminator_loss_fn(disc_real_y, disc_fake_y)
        grads_G = tape.gradient(total_loss_G, self.gen_G.trainable_variables)
        grads_F = tape.gradient(total_loss_F, self.gen_F.trainable_variables)
        disc_X_grads = tape.gradient(disc_X_loss, self.disc_X.trainable_variables)
        disc_Y_grads = tape.gradient(disc_Y_loss, self.disc_Y.trainable_variables)
        self.gen_G_optimizer.apply_gradients(zip(grads_G, self.gen_G.trainable_variables))
        self.gen_F_optimizer.apply_gradients(zip(grads_F, self.gen_F.trainable_variables))
        self.disc_X_optimizer.apply_gradients(zip(disc_X_grads, self.disc_X.trainable_variables))
        self.disc_Y_optimizer.apply_gradients(zip(disc_Y_grads, self.disc_Y.trainable_variables))
        return {"G_loss": total_loss_G, "F_loss": total_loss_F, "D_X_loss": disc_X_loss, "D_Y_loss": disc_Y_loss}


def generator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.GroupNormalization(groups=-1),
            layers.Activation("relu"),
            layers.Conv2D(3, 3, padding="same", activation="tanh"),
        ]
    )


def discriminator():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 4, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Conv2D(1, 2),
        ]
    )


keras.utils.set_random_seed(4)
horses = tf.data.Dataset.from_tensor_slices(np.random.rand(9, 8, 8, 3).astype("float32")).batch(4)
zebras = tf.data.Dataset.from_tensor_slices(np.random.rand(9, 8, 8, 3).astype("float32") ** 2).batch(4)
model = CycleGan(generator(), generator(), discriminator(), discriminator())
adam = lambda: keras.optimizers.Adam(2e-3, beta_1=0.5)  # noqa: E731
model.compile(adam(), adam(), adam(), adam(), generator_loss_fn, discriminator_loss_fn)
history = model.fit(tf.data.Dataset.zip((horses, zebras)), epochs=2)
record(history=history.history, weights=model.gen_G.get_weights(), disc=model.disc_X.get_weights())
