# After losses that are divided by their running mean: a step reads the variables of its metrics.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Normalised(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.Sequential([keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(1)])
        self.errors, self.hits = keras.metrics.Mean(name="errors"), keras.metrics.TruePositives(name="hits")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            pred = tf.sigmoid(self.head(x, training=True))
            each = keras.losses.BinaryCrossentropy(reduction="none")(y, pred)
            scale = tf.stop_gradient(self.errors.total / tf.maximum(self.errors.count, 1.0))
            loss = tf.reduce_mean(each) / (0.5 + scale)
        self.errors.update_state(each)
        self.hits.update_state(y, pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "scale": scale, "hit": tf.reduce_sum(self.hits.accumulator.value)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 4).astype("float32"), np.random.randint(0, 2, (33, 1)).astype("float32")
model = Normalised()
model.compile(keras.optimizers.SGD(0.5))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=model.get_weights())
