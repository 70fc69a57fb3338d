import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def make_encoder():
    return keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(8)])


class BYOL(keras.Model):
    def __init__(self, tau=0.9, **kwargs):
        super().__init__(**kwargs)
        self.online, self.target = make_encoder(), make_encoder()
        self.predictor = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(8)])
        self.target.set_weights(self.online.get_weights())
        self.target.trainable = False
        self.tau = tau

    def regression(self, p, z):
        p, z = tf.math.l2_normalize(p, axis=-1), tf.math.l2_normalize(z, axis=-1)
        return 2 - 2 * tf.reduce_sum(p * z, axis=-1)

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            pa, pb = self.predictor(self.online(a, training=True)), self.predictor(self.online(b, training=True))
            za, zb = self.target(a, training=False), self.target(b, training=False)
            loss = self.regression(pa, tf.stop_gradient(zb)) + self.regression(pb, tf.stop_gradient(za))
            loss = tf.reduce_mean(loss)
        variables = self.online.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        for slow, fast in zip(self.target.variables, self.online.variables):
            slow.assign(self.tau * slow + (1 - self.tau) * fast)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x = np.random.rand(38, 6).astype("float32")
ds = tf.data.Dataset.from_tensor_slices(x).batch(12).map(lambda x: (x * 1.1, x[:, ::-1]))
model = BYOL()
model.compile(optimizer=keras.optimizers.Adam(1e-2))
history = model.fit(ds, epochs=3)
record(history=history.history, online=model.online.get_weights(), target=model.target.get_weights())
