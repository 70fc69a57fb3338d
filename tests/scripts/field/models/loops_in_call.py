import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class ODEBlock(layers.Layer):
    """Euler steps in a loop of the graph."""

    def __init__(self, units):
        super().__init__()
        self.f = layers.Dense(units, "tanh")

    def build(self, shape):
        self.f.build(shape)

    def call(self, x):
        return ops.fori_loop(0, 5, lambda i, h: h + 0.2 * self.f(h), x)


class AdaptiveDepth(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(6, "relu")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        depth = tf.cast(2 + tf.reduce_sum(tf.ones_like(x[:1, 0])), tf.int32)
        _, h = tf.while_loop(lambda i, h: i < depth, lambda i, h: (i + 1, self.dense(h) + h), [0, x])
        return h


class Cell(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.state_size = self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform")
        self.u = self.add_weight(shape=(self.units, self.units), initializer="orthogonal")

    def call(self, x, states):
        h = ops.tanh(ops.matmul(x, self.w) + ops.matmul(states[0], self.u))
        return h, [h]


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5, 4).astype("float32"), np.random.rand(33, 1).astype("float32")
inputs = keras.Input((5, 4))
h = layers.RNN(Cell(6))(inputs)
h = AdaptiveDepth()(ODEBlock(6)(h))
model = keras.Model(inputs, layers.Dense(1)(h))
model.compile(keras.optimizers.Adam(0.01), keras.losses.LogCosh())
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
