"""Custom steps that use numbers and gradients of the batch in unusual ways, as cases of whole_batch.py."""

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
        self.total_loss, self.seen = keras.metrics.Mean(name="total"), keras.metrics.Mean(name="seen")
        self.center = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="center")
        self.products = self.add_weight(shape=(6, 4), initializer="zeros", trainable=False, name="products")

    def call(self, x):
        return self.network(x)

    def values(self):
        """TensorFlow's variables of the weights."""
        return [one.value for one in self.network.trainable_variables]

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


def changed_gradient(change, model, x, y, variables):
    """Of a loss that `model.total` computes, with a change between the tape and the optimizer."""
    total, gradients = gradient_by_tape(model, x, y, variables)
    return total, change(gradients)


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


def penalty_of_inputs(model, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        predicted = model(x)
    return model.mse(y, predicted) + 0.1 * tf.reduce_mean(tf.square(tape.gradient(predicted, x)))


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


@tf.custom_gradient
def fused(predicted, y):
    """A mean square whose gradient is computed with it."""
    with tf.GradientTape() as tape:
        tape.watch(predicted)
        loss = tf.reduce_mean(tf.square(predicted - y))
    gradient = tape.gradient(loss, predicted)
    return loss, lambda upstream: (upstream * gradient, None)


def loss_with_its_gradient(model, x, y):
    return fused(model(x), y)


def change_of_weights_from_zero(model, x, y):
    first, second = model.network.layers
    change, bias = tf.zeros((8, 4)), tf.zeros((8,))
    hidden = first(x)
    with tf.GradientTape() as tape:
        tape.watch([change, bias])
        loss = tf.reduce_mean(tf.square((hidden + bias) @ (second.kernel + change) - y))
    change, bias = (-one for one in tape.gradient(loss, [change, bias]))
    return tf.reduce_mean(tf.square(second(hidden + bias) + hidden @ change - y))


def all_pairs(model, x, y):
    """As relation networks: a layer gets all pairs of the batch, so that its rows are no multiple of the batch's."""
    first, second = model.network.layers
    features, count = first(x), tf.shape(x)[0]
    pairs = tf.repeat(features, count, axis=0) - tf.tile(features, [count, 1])
    return tf.reduce_mean(tf.square(second(pairs) - tf.repeat(y, count, axis=0)))


def constant_number_of_rows(model, x, y):
    """As TensorFlow's DCGAN: noise with as many rows as a full batch, also in the last step, whose batch is smaller."""
    noise = tf.random.stateless_normal([8, 6], seed=(1, 2))
    return model.mse(y, model(x)) + tf.reduce_mean(model(noise))


def layers_in_branches(model, x, y):
    """The batch chooses the branch of a layer and the length of a loop; a map has its rows."""
    first, second = model.network.layers
    hidden = tf.cond(tf.reduce_mean(x) > 0.0, lambda: first(x), lambda: first(0.5 * x))
    hidden = tf.while_loop(lambda h: tf.reduce_mean(tf.square(h)) > 0.2, lambda h: [0.8 * h], [hidden])[0]
    pairs = second(hidden), y
    return tf.reduce_mean(tf.map_fn(lambda p: tf.norm(p[0] - p[1]), pairs, fn_output_signature=tf.float32))


def divided_by_a_running_mean(model, x, y):
    each = keras.losses.mean_squared_error(y, model(x))
    mean = tf.stop_gradient(model.seen.total / tf.maximum(model.seen.count, 1.0))
    model.seen.update_state(each)
    return tf.reduce_mean(each) / (0.5 + mean)


def metric_in_a_branch(model, x, y):
    loss = model.mse(y, model(x))

    def update():
        model.seen.update_state(loss)
        return 0

    tf.cond(model.optimizer.iterations % 2 == 0, update, lambda: 0)
    return loss + 0.0 * model.seen.result()


def result_where_it_is_updated(model, x, y):
    loss = model.mse(y, model(x))

    def update():
        model.seen.update_state(1.0)
        return model.seen.result()

    return loss * tf.cond(model.optimizer.iterations % 2 == 0, update, lambda: tf.ones_like(loss))


def loss_of_the_batch_in_a_map(model, x, y):
    dice, predicted = keras.losses.Dice(), model(x)
    return tf.reduce_sum(tf.vectorized_map(lambda one: dice(y, one * predicted), tf.constant([0.5, 1.0])))


def loss_of_the_batch_in_a_branch(model, x, y):
    dice, predicted = keras.losses.Dice(), model(x)
    even = model.optimizer.iterations % 2 == 0
    return tf.cond(even, lambda: dice(tf.sigmoid(y), predicted), lambda: dice(y, predicted))


def gradients_of_features(model, x, y, variables):
    """As MGDA: gradients of two losses by the features are mixed, and go on to the first layer."""
    first, second = model.network.layers
    with tf.GradientTape(persistent=True) as tape:
        features = first(x)
        losses = [model.mse(y, second(features)), tf.reduce_mean(tf.abs(second(features)))]
    one, other = (tape.gradient(loss, features) for loss in losses)
    share = tf.reduce_sum((other - one) * other) / tf.reduce_sum(tf.square(one - other))
    mixed = share * one + (1.0 - share) * other
    shared = tape.gradient(features, first.trainable_variables, output_gradients=mixed)
    return losses[0], shared + tape.gradient(losses[0], second.trainable_variables)


def gradients_of_the_graph(model, x, y, variables):
    loss = tf.reduce_sum(tf.square(model(x) - y)) / 20.0
    penalty = tf.add_n([tf.reduce_sum(tf.square(one)) for one in tf.gradients(loss, model.values())])
    return loss, tf.gradients(loss + 0.01 * penalty, model.values())


def hessian_of_the_graph(model, x, y, variables):
    first, second = model.network.layers
    bias = tf.identity(second.bias.value)
    loss = tf.reduce_mean(tf.square(tf.tanh(first(x) @ second.kernel + bias) - y))
    *gradients, last = tf.gradients(loss, model.values())
    hessian = tf.hessians(loss, [bias])[0] + tf.eye(4)
    return loss, [*gradients, tf.linalg.matvec(tf.linalg.inv(hessian), last)]


def product_of_the_hessian(model, x, y, variables):
    values = model.values()
    with tf.autodiff.ForwardAccumulator(values, [tf.ones_like(one) for one in values]) as accumulator:
        with tf.GradientTape() as tape:
            loss = model.mse(y, model(x)) + keras.losses.Dice()(y, model(x))
        gradients = tape.gradient(loss, values)
    return loss, [one + 0.1 * accumulator.jvp(one) for one in gradients]


def newton(model, x, y):
    bias = model.network.layers[1].bias.value
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            loss = model.mse(y, model(x))
        gradient = tape.gradient(loss, bias)
    return loss + tf.stop_gradient(tf.reduce_sum(outer.jacobian(gradient, bias)))


TOTALS = (
    *(norm_of_gradients, two_inner_steps, attacked, sums, vectors, moving_averages, loss_with_its_gradient),
    *(change_of_weights_from_zero, metric_in_a_branch, result_where_it_is_updated, all_pairs, layers_in_branches),
    *(constant_number_of_rows, divided_by_a_running_mean),
    *(loss_of_the_batch_in_a_map, loss_of_the_batch_in_a_branch, newton),
)
GRADIENTS = (
    *(gradient_by_persistent_tape, gradients_of_features),
    *(gradients_of_the_graph, hessian_of_the_graph, product_of_the_hessian),
)
# What steps do with the gradients of a tape.
CHANGES = {
    "clipped": lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0],
    "signs": lambda gradients: [tf.sign(one) * 0.01 for one in gradients],
    "normalised": lambda gradients: [one / (tf.norm(one) + 1e-3) for one in gradients],
}
CASES = {
    **{
        name: functools.partial(Step, penalty_of_inputs, functools.partial(changed_gradient, change))
        for name, change in CHANGES.items()
    },
    **{total.__name__: functools.partial(Step, total) for total in TOTALS},
    "attacked_by_sums": functools.partial(Step, functools.partial(attacked, reduce=tf.reduce_sum)),
    "attacked_by_means": functools.partial(Step, functools.partial(attacked, reduce=tf.reduce_mean)),
    **{gradient.__name__: functools.partial(Step, None, gradient) for gradient in GRADIENTS},
}
# On several replicas -> what the error names.
REFUSED = {
    "newton": "tf.GradientTape.jacobian",
    "hessian_of_the_graph": "tf.hessians",
    "product_of_the_hessian": "tf.autodiff.ForwardAccumulator",
}
