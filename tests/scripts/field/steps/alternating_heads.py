import keras
import numpy as np
import tensorflow as tf
from recording import record


class Alternating(keras.Model):
    """Trains the body and one of two heads, in turn, by tf.cond on a counter; one optimizer for each part."""

    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(8, "relu")
        self.heads = [keras.layers.Dense(1, name=f"head{i}") for i in range(2)]
        self.turn = self.add_weight(name="turn", shape=(), dtype="int32", trainable=False, initializer="zeros")
        self.tracker = keras.metrics.Mean(name="loss")

    def build(self, shape):
        self.body.build(shape)
        for head in self.heads:
            head.build((None, 8))
        self.built = True

    def compile(self, optimizers, **kwargs):
        super().compile(**kwargs)
        self.optimizers_of_parts = optimizers

    def call(self, x):
        return [head(self.body(x)) for head in self.heads]

    def train_step(self, data):
        x, y = data
        on = tf.cast(self.turn % 2, tf.float32)
        with tf.GradientTape(persistent=True) as tape:
            first, second = self(x, training=True)
            per_example = (1 - on) * tf.square(first - y) + on * tf.abs(second - y)
            loss = tf.reduce_mean(per_example)
            penalty = 1e-3 * tf.add_n([tf.reduce_sum(v**2) for v in self.body.trainable_variables])
            whole = loss + penalty
        body, heads = (
            self.body.trainable_variables,
            self.heads[0].trainable_variables + self.heads[1].trainable_variables,
        )
        self.optimizers_of_parts[0].apply(tape.gradient(whole, body), body)
        self.optimizers_of_parts[1].apply(tape.gradient(loss, heads), heads)
        del tape
        self.turn.assign_add(1)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


keras.utils.set_random_seed(15)
x = np.random.rand(48, 3).astype("float32")
model = Alternating()
model.build((None, 3))
model.compile([keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)])
model.fit(x, x[:, :1], epochs=2, batch_size=12, shuffle=False, verbose=0)
record(turn=int(model.turn.numpy()), weights=model.get_weights())
