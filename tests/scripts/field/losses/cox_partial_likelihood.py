# After DeepSurv: Cox' partial likelihood, sorted over the batch, and the concordance of the epoch as a metric.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def cox(y_true, risk):
    time, event = y_true[:, 0], y_true[:, 1]
    order = tf.argsort(time, direction="DESCENDING", stable=True)
    event, risk = tf.gather(event, order), tf.gather(risk[:, 0], order)
    at_risk = tf.math.cumulative_logsumexp(risk)
    return -tf.reduce_sum((risk - at_risk) * event) / tf.maximum(tf.reduce_sum(event), 1.0)


class Concordance(keras.metrics.Metric):
    def __init__(self, name="concordance", **options):
        super().__init__(name=name, **options)
        self.right = self.add_weight(shape=(), initializer="zeros", name="right")
        self.pairs = self.add_weight(shape=(), initializer="zeros", name="pairs")

    def update_state(self, y_true, y_pred, sample_weight=None):
        time, event, risk = y_true[:, 0], y_true[:, 1], y_pred[:, 0]
        valid = tf.cast(time[:, None] < time[None], tf.float32) * event[:, None]
        self.right.assign_add(tf.reduce_sum(valid * tf.cast(risk[:, None] > risk[None], tf.float32)))
        self.pairs.assign_add(tf.reduce_sum(valid))

    def result(self):
        return tf.math.divide_no_nan(self.right.value, self.pairs.value)


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
y = np.stack([np.random.rand(33), np.random.rand(33) < 0.6], axis=1).astype("float32")
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1, use_bias=False, kernel_regularizer="l2")]
)
model.compile(keras.optimizers.AdamW(0.02), cox, metrics=[Concordance()])
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, validation_data=(x[:17], y[:17]))
tested = model.evaluate(x, y, batch_size=16, return_dict=True)
record(history=history.history, tested=tested, weights=model.get_weights())
