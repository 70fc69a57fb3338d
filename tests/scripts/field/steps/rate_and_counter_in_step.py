import keras
import numpy as np
import tensorflow as tf
from recording import record


class Warm(keras.Model):
    """Sets the learning rate in the step, accumulates metrics of its own, and resets them in on_epoch_end."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.largest = keras.metrics.MeanMetricWrapper(lambda y, p: tf.reduce_max(tf.abs(p), axis=-1), name="largest")
        self.losses_seen = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.losses_seen, self.largest]

    def train_step(self, data):
        x, y, w = keras.utils.unpack_x_y_sample_weight(data)
        self.updates.assign_add(1)
        self.optimizer.learning_rate.assign(0.01 * tf.minimum(1.0, tf.cast(self.updates, tf.float32) / 4.0))
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = self.compute_loss(x, y, p, w)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.losses_seen.update_state(loss, sample_weight=tf.shape(x)[0])
        self.largest.update_state(y, p)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(13)
x, y = np.random.rand(36, 4).astype("float32"), np.random.rand(36, 2).astype("float32")
inputs = keras.Input((4,))
model = Warm(inputs, keras.layers.Dense(2)(keras.layers.Dense(6, "relu")(inputs)))
model.compile(keras.optimizers.Adam(), "mse")
history = model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0)
record(history=history.history, updates=int(model.updates.numpy()), weights=model.get_weights())
