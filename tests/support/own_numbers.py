"""Steps of one's own that compute numbers and gradients from the batch, as cases of whole_batch.py."""

import functools

import keras
import tensorflow as tf
from keras import ops


class Step(keras.Model):
    """Applies the gradient of `total(model, x, y)`, and reports that number, a sum and a norm."""

    def __init__(self, total, gradient=None):
        super().__init__()
        hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.network = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(4, activation="sigmoid")])
        self.mse, self.total, self.gradient = keras.losses.MeanSquaredError(), total, gradient or gradient_by_tape
        self.each = Each(reduction="none")
        self.total_loss = keras.metrics.Mean(name="total")
        self.center = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="center")
        self.products = self.add_weight(shape=(6, 4), initializer="zeros", trainable=False, name="products")

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        variables = self.network.trainable_variables
        total, gradients = self.gradient(self, x, y, variables)
        self.optimizer.apply(gradients, variables)
        self.total_loss.update_state(total)
        return {"total": self.total_loss.result(), "last": total, "norm": tf.linalg.global_norm(gradients)}


class Each(keras.losses.Loss):
    """Has a value for each example, which depends on the others."""

    def call(self, true, predicted):
        return ops.mean(ops.square(true - predicted + ops.mean(predicted)), axis=-1)


def gradient_by_tape(model, x, y, variables):
    with tf.GradientTape() as tape:
        total = model.total(model, x, y)
    return total, tape.gradient(total, variables)


def gradient_by_persistent_tape(model, x, y, variables):
    """Of the squares of gradients, within the tape that records them."""
    with tf.GradientTape(persistent=True) as tape:
        loss = model.mse(y, model(x))
        total = loss + tf.add_n([tf.reduce_sum(one**2) for one in tape.gradient(loss, variables)])
    return total, tape.gradient(total, variables)


def norm_of_gradients(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.mse(y, model(x))
    return loss + tf.linalg.global_norm(tape.gradient(loss, model.network.trainable_variables))


def two_inner_steps(model, x, y):
    """Learns weights from which two steps of gradient descent give a good loss."""
    weights = list(model.network.trainable_variables)
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch([one for one in weights if isinstance(one, tf.Tensor)])
            loss = model.mse(y, forward(weights, x))
        weights = [one - 2.0 * gradient for one, gradient in zip(weights, tape.gradient(loss, weights), strict=True)]
    return model.mse(y, forward(weights, 0.9 * x))


def forward(weights, x):
    return tf.sigmoid(tf.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3])


def attacked(model, x, y, reduce=None):
    """The loss of inputs that were moved along their gradients, of a loss object's value or of another one."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        predicted = model(x)
        loss = model.mse(y, predicted) if reduce is None else reduce(keras.losses.mean_squared_error(y, predicted))
    return model.mse(y, model(x + 5.0 * tape.gradient(loss, x)))


def sums(model, x, y):
    values = keras.losses.mean_squared_error(y, model(x))
    count = tf.cast(tf.shape(x)[0], tf.float32)
    return tf.reduce_sum(values) / 8.0 + 0.5 * tf.reduce_sum(values) / count - tf.add_n(model.losses)


def vectors(model, x, y):
    return ops.mean(model.each(y, model(x)) * y[:, 0]) + ops.mean(keras.losses.mean_squared_error(y, model(x)))


def moving_averages(model, x, y):
    predicted = model(x)
    model.center.assign(0.9 * model.center + 0.1 * tf.reduce_mean(tf.stop_gradient(predicted), axis=0))
    model.products.assign(0.5 * model.products + tf.matmul(x, tf.stop_gradient(predicted), transpose_a=True))
    return model.mse(y, predicted - model.center) + 0.01 * tf.reduce_sum(tf.square(model.products))


CASES = {
    "norm_of_gradients": functools.partial(Step, norm_of_gradients),
    "two_inner_steps": functools.partial(Step, two_inner_steps),
    "attacked": functools.partial(Step, attacked),
    "attacked_by_sums": functools.partial(Step, functools.partial(attacked, reduce=tf.reduce_sum)),
    "attacked_by_means": functools.partial(Step, functools.partial(attacked, reduce=tf.reduce_mean)),
    "sums": functools.partial(Step, sums),
    "vectors": functools.partial(Step, vectors),
    "moving_averages": functools.partial(Step, moving_averages),
    "persistent_tape": functools.partial(Step, None, gradient_by_persistent_tape),
}
