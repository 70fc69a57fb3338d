# After TensorFlow's tutorial on DCGAN: the noise has always as many rows as a full batch, also in the last step.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

BATCH_SIZE, NOISE = 8, 3
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


class DCGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((NOISE,)), layers.Dense(6, "relu"), layers.Dense(4)])
        self.discriminator = keras.Sequential([keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(1)])
        self.generator_optimizer, self.discriminator_optimizer = (
            keras.optimizers.Adam(0.01),
            keras.optimizers.Adam(0.01),
        )
        self.step = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="step")

    def train_step(self, images):
        noise = tf.random.stateless_normal([BATCH_SIZE, NOISE], seed=tf.stack([self.step.value, 7]))
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            generated_images = self.generator(noise, training=True)
            real_output = self.discriminator(images, training=True)
            fake_output = self.discriminator(generated_images, training=True)
            gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
            real_loss = cross_entropy(tf.ones_like(real_output), real_output)
            disc_loss = real_loss + cross_entropy(tf.zeros_like(fake_output), fake_output)
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(gen_tape.gradient(gen_loss, variables), variables))
        variables = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply_gradients(zip(disc_tape.gradient(disc_loss, variables), variables))
        self.step.assign_add(1)
        return {"gen": gen_loss, "disc": disc_loss, "rows": tf.cast(tf.shape(fake_output)[0], tf.float32)}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 4).astype("float32")
model = DCGAN()
model.compile()
history = model.fit(tf.data.Dataset.from_tensor_slices(x).batch(BATCH_SIZE), epochs=2)
record(history=history.history, generator=model.generator.get_weights(), other=model.discriminator.get_weights())
