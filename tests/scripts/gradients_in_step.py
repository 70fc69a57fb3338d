"""Trains with steps that take gradients and losses in unusual ways, in float64, and prints the weights or the error.

usage: gradients_in_step.py NAME ...
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
DRAWS = np.random.default_rng(0)
X, Y = DRAWS.standard_normal((48, 6)), DRAWS.standard_normal((48, 2))


class Model(keras.Model):
    """Two dense layers; applies the gradient of what `of` returns, or the gradients that it returns with the loss."""

    def __init__(self, of):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.first, self.second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)
        self.seen, self.of = keras.metrics.Mean(name="seen"), of

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 8))

    def call(self, x, training=None):
        return self.second(self.first(x))

    def errors(self, x, y):
        """The square of each error of each example."""
        return tf.square(self(x, training=True) - y)

    def train_step(self, data):
        variables = [*self.first.trainable_variables, *self.second.trainable_variables]
        with tf.GradientTape() as tape:
            loss = self.of(self, *data)
        loss, gradients = loss if isinstance(loss, tuple) else (loss, tape.gradient(loss, variables))
        self.optimizer.apply(gradients, variables)
        return {"value": loss}

    def values(self):
        """TensorFlow's variables of the weights that are applied."""
        return [one.value for one in (*self.first.trainable_variables, *self.second.trainable_variables)]


@tf.custom_gradient
def fused(predictions, y):
    """A mean square whose gradient is computed with it."""
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        loss = tf.reduce_mean(tf.square(predictions - y))
    gradient = tape.gradient(loss, predictions)
    return loss, lambda upstream: (upstream * gradient, None)


def loss_with_its_gradient(model, x, y):
    return fused(model(x, training=True), y)


def change_of_weights_from_zero(model, x, y):
    change, bias = tf.zeros((8, 2), tf.float64), tf.zeros((8,), tf.float64)
    hidden = model.first(x)
    with tf.GradientTape() as tape:
        tape.watch([change, bias])
        loss = tf.reduce_mean(tf.square((hidden + bias) @ (model.second.kernel + change) - y))
    change, bias = (-0.1 * one for one in tape.gradient(loss, [change, bias]))
    return tf.reduce_mean(tf.square(model.second(hidden + bias) + hidden @ change - y))


def metric_in_a_branch(model, x, y):
    loss = tf.reduce_mean(model.errors(x, y))

    def update():
        model.seen.update_state(loss)
        return tf.constant(0)

    tf.cond(model.optimizer.iterations % 2 == 0, update, lambda: tf.constant(0))
    return loss + 0.0 * model.seen.result()


def gradients_of_the_graph(model, x, y):
    loss = tf.reduce_sum(model.errors(x, y)) / 20.0
    penalty = tf.add_n([tf.reduce_sum(tf.square(one)) for one in tf.gradients(loss, model.values())])
    return loss, tf.gradients(loss + 0.01 * penalty, model.values())


def hessian_of_the_graph(model, x, y):
    bias = tf.identity(model.second.bias.value)
    loss = tf.reduce_mean(tf.square(tf.tanh(model.first(x) @ model.second.kernel + bias) - y))
    gradients = tf.gradients(loss, model.values())
    hessian = tf.hessians(loss, [bias])[0] + tf.eye(2, dtype=bias.dtype)
    return loss, [*gradients[:-1], tf.linalg.matvec(tf.linalg.inv(hessian), gradients[-1])]


def product_of_the_hessian(model, x, y):
    values = model.values()
    with tf.autodiff.ForwardAccumulator(values, [tf.ones_like(one) for one in values]) as accumulator:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.errors(x, y)) + keras.losses.Dice()(tf.sigmoid(y), tf.sigmoid(model(x)))
        gradients = tape.gradient(loss, values)
    return loss, [one + 0.1 * accumulator.jvp(one) for one in gradients]


def result_where_it_is_updated(model, x, y):
    def update():
        model.seen.update_state(1.0)
        return model.seen.result()

    loss = tf.reduce_mean(model.errors(x, y))
    return loss * tf.cond(model.optimizer.iterations % 2 == 0, update, lambda: tf.ones_like(loss))


def newton(model, x, y):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.errors(x, y))
        gradient = tape.gradient(loss, model.second.bias)
    hessian = outer.jacobian(gradient, model.second.bias.value)
    return loss + tf.stop_gradient(tf.reduce_sum(hessian))


def loss_of_the_batch_in_a_map(model, x, y):
    loss, predictions = keras.losses.Dice(), tf.sigmoid(model(x, training=True))
    return tf.reduce_sum(
        tf.vectorized_map(lambda one: loss(tf.sigmoid(y), one * predictions), tf.constant([0.5, 1.0], y.dtype))
    )


def loss_of_the_batch_in_a_branch(model, x, y):
    loss, predictions = keras.losses.Dice(), tf.sigmoid(model(x, training=True))
    even = model.optimizer.iterations % 2 == 0
    return tf.cond(even, lambda: loss(tf.sigmoid(y), predictions), lambda: loss(y, predictions))


def train(name):
    """Returns a number for each array of weights, or the error."""
    model = Model(globals()[name])
    model.build((None, 6))
    model.compile(keras.optimizers.SGD(0.1))
    try:
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    arrays = model.get_weights()
    return [float(np.sum(array * np.cos(np.arange(array.size)).reshape(array.shape))) for array in arrays]


print(json.dumps({name: train(name) for name in sys.argv[1:]}))
