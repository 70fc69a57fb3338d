import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

# refused on several replicas: assigns a variable in a branch or a loop of the graph


class Branching(keras.Model):
    """Predicates of the batch choose values, parts of the network and assignments; loops and maps call layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = layers.Dense(6, "tanh"), layers.Dense(6, "relu"), layers.Dense(1)
        for layer, width in ((self.first, 5), (self.second, 5), (self.head, 6)):
            layer.build((None, width))
        self.best = self.add_weight(shape=(), initializer="ones", trainable=False, name="best")
        self.stale = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="stale")

    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            h = tf.cond(tf.reduce_mean(x) > 0.5, lambda: self.first(x), lambda: self.second(x))
            rounds = tf.constant(0.0)
            while tf.reduce_mean(tf.square(h)) > 0.2 and rounds < 3.0:
                h, rounds = h * 0.8, rounds + 1.0
            pred = self.head(h)
            parts = tf.map_fn(
                lambda pair: tf.reduce_sum(tf.square(pair[0] - pair[1])), (pred, y), fn_output_signature=tf.float32
            )
            loss = tf.reduce_mean(parts) + 0.01 * tf.reduce_sum(tf.norm(self.head(h), axis=0))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [tf.zeros_like(v) if g is None else g for g, v in zip(gradients, self.trainable_variables)]
        self.optimizer.apply(gradients, self.trainable_variables)
        if loss < self.best:
            self.best.assign(loss)
            self.stale.assign(0)
        else:
            self.stale.assign_add(1)
        tf.cond(
            self.stale > 1,
            lambda: self.optimizer.learning_rate.assign(0.05),
            lambda: self.optimizer.learning_rate.value,
        )
        return {"loss": loss, "rounds": rounds, "stale": self.stale.value}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5).astype("float32"), np.random.rand(33, 1).astype("float32")
model = Branching()
model.compile(keras.optimizers.SGD(0.2))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, best=float(model.best.numpy()), weights=[w.numpy() for w in model.weights])
