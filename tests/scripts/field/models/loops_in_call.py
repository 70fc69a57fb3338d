import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class ODEBlock(layers.Layer):
    """Euler steps in a loop of the graph, and how many depends on a tensor."""

    def __init__(self, units):
        super().__init__()
        self.f = layers.Dense(units, "tanh")

    def build(self, shape):
        self.f.build(shape)

    def call(self, x):
        x = ops.fori_loop(0, 5, lambda i, h: h + 0.2 * self.f(h), x)
        steps = tf.cast(2 + tf.reduce_sum(tf.ones_like(x[:1, 0])), tf.int32)
        return tf.while_loop(lambda i, h: i < steps, lambda i, h: (i + 1, self.f(h) + h), [0, x])[1]


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5, 4).astype("float32"), np.random.rand(33, 1).astype("float32")
inputs = keras.Input((5, 4))
model = keras.Model(inputs, layers.Dense(1)(ODEBlock(6)(layers.RNN(layers.GRUCell(6))(inputs))))
model.compile(keras.optimizers.Adam(0.01), keras.losses.LogCosh())
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
