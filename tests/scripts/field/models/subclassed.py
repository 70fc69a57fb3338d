import keras
import numpy as np
from recording import record


class Block(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", regularizer="l2")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        self.add_loss(0.01 * keras.ops.mean(x**2))
        return keras.ops.tanh(x @ self.w)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(6), Block(4)]
        self.head = keras.layers.Dense(1)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


keras.utils.set_random_seed(0)
x, y = np.random.rand(32, 5).astype("float32"), np.random.rand(32, 1).astype("float32")
model = Net()
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights(), evaluated=model.evaluate(x, y))
