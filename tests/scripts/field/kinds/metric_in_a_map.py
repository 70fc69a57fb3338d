# told: updates the metric
import keras
import numpy as np
import tensorflow as tf
from recording import record


class Seen(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        return tf.map_fn(lambda row: (self.seen.update_state(row), row)[1], x)


keras.utils.set_random_seed(1)
x, y = np.random.rand(44, 4).astype("float32"), np.random.rand(44, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), Seen(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
record(history=history.history, weights=model.get_weights())
