# After MoCo and memory banks: rows of a tf.Variable that a step writes.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Bank(keras.Model):
    def __init__(self):
        super().__init__()
        self.features = keras.Sequential([keras.Input((6,)), layers.SpectralNormalization(layers.Dense(4))])
        self.bank, self.largest, self.queue = (tf.Variable(tf.zeros((33, 4)), trainable=False) for _ in range(3))

    def train_step(self, data):
        numbers, x = data
        with tf.GradientTape() as tape:
            features = self.features(x, training=True)
            loss = tf.reduce_mean(tf.square(features - tf.gather(self.bank, numbers) + 0.1))
        rows = numbers[:, tf.newaxis]
        self.bank.scatter_nd_update(rows, features)
        self.bank.scatter_nd_add(rows, 0.1 * features)
        self.largest.scatter_nd_max(rows, features)
        self.queue[5:].assign(self.queue[:-5])
        self.queue[:1, ..., 1].assign(tf.reduce_sum(features, axis=1)[:1])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
model = Bank()
model.compile("sgd")
data = tf.data.Dataset.from_tensor_slices((np.arange(33), np.random.rand(33, 6).astype("float32")))
history = model.fit(data.batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
record(rows=[one.numpy() for one in (model.bank, model.largest, model.queue)])
