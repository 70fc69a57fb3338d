import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class PINN(keras.Model):
    """Heat equation u_t = k u_xx, whose k is learned too."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [keras.Input((2,)), layers.Dense(12, "tanh"), layers.Dense(12, "tanh"), layers.Dense(1)]
        )
        self.k = tf.Variable(0.5, trainable=True, dtype=tf.float32)

    def residual(self, xt):
        x, t = xt[:, 0:1], xt[:, 1:2]
        with tf.GradientTape() as t2:
            t2.watch(x)
            with tf.GradientTape(persistent=True) as t1:
                t1.watch([x, t])
                u = self.net(tf.concat([x, t], axis=1))
            u_x = t1.gradient(u, x)
            u_t = t1.gradient(u, t)
            del t1
        u_xx = t2.gradient(u_x, x)
        return u_t - self.k * u_xx

    def train_step(self, data):
        points, (border, values) = data
        with tf.GradientTape() as tape:
            physics = tf.reduce_mean(tf.square(self.residual(points)))
            boundary = tf.reduce_mean(tf.square(self.net(border) - values))
            loss = physics + boundary
        variables = self.net.trainable_variables + [self.k]
        grads = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(grads, variables))
        return {"loss": loss, "physics": physics, "k": self.k}


keras.utils.set_random_seed(1)
points = np.random.rand(48, 2).astype("float32")
border = np.random.rand(48, 2).astype("float32") * [0.0, 1.0]
values = np.sin(border.sum(axis=1, keepdims=True)).astype("float32")
data = tf.data.Dataset.zip(
    (
        tf.data.Dataset.from_tensor_slices(points).batch(16),
        tf.data.Dataset.from_tensor_slices((border.astype("float32"), values)).batch(16),
    )
)
model = PINN()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(data, epochs=3)
record(history=history.history, weights=model.net.get_weights(), k=model.k.numpy())
