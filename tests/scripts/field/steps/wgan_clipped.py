import keras
import numpy as np
import tensorflow as tf
from recording import record


class ClipConstraint(keras.constraints.Constraint):
    def __init__(self, value):
        self.value = value

    def __call__(self, weights):
        return keras.ops.clip(weights, -self.value, self.value)


class WGAN(keras.Model):
    def __init__(self, critic, generator, critic_steps=3):
        super().__init__()
        self.critic, self.generator, self.critic_steps = critic, generator, critic_steps

    def compile(self, c_opt, g_opt):
        super().compile()
        self.c_opt, self.g_opt = c_opt, g_opt

    def train_step(self, data):
        real, latent = data
        for _ in range(self.critic_steps):
            with tf.GradientTape() as tape:
                fake = self.generator(latent, training=True)
                c_loss = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
            grads = tape.gradient(c_loss, self.critic.trainable_variables)
            self.c_opt.apply_gradients(zip(grads, self.critic.trainable_variables))
            for v in self.critic.trainable_variables:
                v.assign(tf.clip_by_value(v, -0.3, 0.3))
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(self.critic(self.generator(latent, training=True)))
        grads = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_opt.apply_gradients(zip(grads, self.generator.trainable_variables))
        return {"c_loss": c_loss, "g_loss": g_loss}


keras.utils.set_random_seed(2)
rng = np.random.default_rng(5)
real, latent = rng.normal(size=(44, 5)).astype("float32"), rng.normal(size=(44, 3)).astype("float32")
critic = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.Dense(8, kernel_constraint=ClipConstraint(0.25)),
        keras.layers.LeakyReLU(),
        keras.layers.Dense(1),
    ]
)
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(5)])
model = WGAN(critic, generator)
model.compile(keras.optimizers.RMSprop(5e-3), keras.optimizers.RMSprop(5e-3))
data = tf.data.Dataset.from_tensor_slices((real, latent)).batch(12)
history = model.fit(data, epochs=2)
record(history=history.history, critic=critic.get_weights(), generator=generator.get_weights())
