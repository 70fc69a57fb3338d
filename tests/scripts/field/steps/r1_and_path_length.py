# After StyleGAN2: R1 on real rows in every second step, and a path length whose mean is kept by a variable.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class StyleGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.mapping = keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh")])
        self.synthesis = keras.Sequential([keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(5)])
        self.d = keras.Sequential([keras.Input((5,)), layers.Dense(7, "softplus"), layers.Dense(1)])
        self.g_opt, self.d_opt = keras.optimizers.Adam(0.01, beta_1=0.0), keras.optimizers.Adam(0.01, beta_1=0.0)
        self.path_mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="path_mean")
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def train_step(self, real):
        z = tf.random.stateless_normal([tf.shape(real)[0], 3], seed=tf.stack([self.count.value, 1]))
        lazily = tf.cast(self.count.value % 2 == 0, tf.float32)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(real)
                scores = self.d(real)
                total = tf.reduce_sum(scores)
            slopes = inner.gradient(total, real)
            penalty = tf.reduce_mean(tf.reduce_sum(tf.square(slopes), axis=1))
            fake = self.d(self.synthesis(self.mapping(z)))
            d_loss = tf.reduce_mean(tf.nn.softplus(-scores)) + tf.reduce_mean(tf.nn.softplus(fake))
            d_total = d_loss + lazily * 5.0 * penalty
        self.d_opt.apply(tape.gradient(d_total, self.d.trainable_variables), self.d.trainable_variables)
        with tf.GradientTape() as tape:
            w = self.mapping(z)
            with tf.GradientTape() as inner:
                inner.watch(w)
                image = self.synthesis(w)
                noise = tf.random.stateless_normal(tf.shape(image), seed=[5, 6])
                projected = tf.reduce_sum(image * noise)
            lengths = tf.norm(inner.gradient(projected, w), axis=1)
            mean = self.path_mean + 0.1 * (tf.reduce_mean(lengths) - self.path_mean)
            g_loss = tf.reduce_mean(tf.nn.softplus(-self.d(image))) + 2.0 * tf.reduce_mean(tf.square(lengths - mean))
        variables = self.mapping.trainable_variables + self.synthesis.trainable_variables
        self.g_opt.apply(tape.gradient(g_loss, variables), variables)
        self.path_mean.assign(mean)
        self.count.assign_add(1)
        return {"d": d_loss, "g": g_loss, "r1": penalty, "path": mean}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 5).astype("float32")
model = StyleGAN()
model.compile()
history = model.fit(tf.data.Dataset.from_tensor_slices(x).batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
