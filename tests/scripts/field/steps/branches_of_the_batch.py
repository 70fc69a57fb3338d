import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Branching(keras.Model):
    """Predicates of the batch choose values, parts of the network and assignments; loops and maps call layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = layers.Dense(6, "tanh"), layers.Dense(6, "relu"), layers.Dense(1)
        for layer, width in ((self.first, 5), (self.second, 5), (self.head, 6)):
            layer.build((None, width))
        self.best = self.add_weight(shape=(), initializer="ones", trainable=False, name="best")

    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            h = tf.cond(tf.reduce_mean(x) > 0.5, lambda: self.first(x), lambda: self.second(x))
            rounds = tf.constant(0.0)
            while tf.reduce_mean(tf.square(h)) > 0.2 and rounds < 3.0:
                h, rounds = h * 0.8, rounds + 1.0
            pairs = (self.head(h), y)
            error = tf.map_fn(lambda p: tf.reduce_sum((p[0] - p[1]) ** 2), pairs, fn_output_signature=tf.float32)
            loss = tf.reduce_mean(error)
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [tf.zeros_like(v) if g is None else g for g, v in zip(gradients, self.trainable_variables)]
        self.optimizer.apply(gradients, self.trainable_variables)
        if loss < self.best:
            self.best.assign(loss)
        else:
            self.optimizer.learning_rate.assign(0.05)
        return {"loss": loss, "rounds": rounds, "best": self.best.value}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5).astype("float32"), np.random.rand(33, 1).astype("float32")
model = Branching()
model.compile(keras.optimizers.SGD(0.2))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=[w.numpy() for w in model.weights])
