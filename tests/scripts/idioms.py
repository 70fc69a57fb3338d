"""Small things that scripts do with Keras; prints a number for each, as JSON. Run by Keras, and by tfdist.run."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import ops

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.random((24, 3), np.float32), GENERATOR.random((24, 1), np.float32)


def network(inputs: int = 1, shape: tuple = (3,)) -> keras.Model:
    """A linear model of one or more inputs; its weights are the same in each call."""
    keras.utils.set_random_seed(1)
    given = [keras.Input(shape) for _ in range(inputs)]
    joined = keras.layers.Concatenate()(given) if inputs > 1 else given[0]
    model = keras.Model(given, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    return model


class OwnLoss(keras.Model):
    """A model whose compute_loss updates a metric."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.dense, self.mean = keras.layers.Dense(1), keras.metrics.Mean(name="squares")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.mean.update_state(ops.sum(ops.square(y)))
        return ops.mean(ops.square(y - y_pred))


class Penalty(keras.layers.Layer):
    """Adds the mean of the squares of its inputs to the loss."""

    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


def metric_in_compute_loss():
    model = OwnLoss()
    model.compile("sgd")
    return model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)["squares"]


def compute_loss_of_the_object():
    model = network()
    model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: (
        3 * ops.mean(ops.square(y - y_pred))
    )
    return model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"][0]


def shuffle_within_batches():
    return network().fit(X, Y, batch_size=8, epochs=2, shuffle="batch", verbose=0).history["loss"][1]


def lists_of_inputs_on_a_batch():
    return float(network(inputs=2).train_on_batch([X, X], Y))


def batches_of_numbers():
    data = tf.data.Dataset.from_tensor_slices((X[:, 0], Y)).batch(6)
    return network(shape=(1,)).evaluate(data, verbose=0)


def frozen():
    model = network()
    model.trainable = False
    model.compile("sgd", "mse")
    return float(model.train_on_batch(X, Y))


def none_for_weights():
    def batches():
        while True:
            yield X[:6], Y[:6], None

    return network().fit(batches(), steps_per_epoch=2, verbose=0).history["loss"][0]


def added_loss_alone():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, Penalty()(keras.layers.Dense(2)(inputs)))
    model.compile("sgd")
    return float(model.train_on_batch(X))


IDIOMS = (
    *(metric_in_compute_loss, compute_loss_of_the_object, shuffle_within_batches, lists_of_inputs_on_a_batch),
    *(batches_of_numbers, frozen, none_for_weights, added_loss_alone),
)
print(json.dumps({idiom.__name__: float(idiom()) for idiom in IDIOMS}))
