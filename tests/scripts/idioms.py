"""Small things that scripts do with Keras; prints the numbers of each, as JSON. Run by Keras, and by tfdist.run.

usage: python idioms.py NAME...
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from recording import plain

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.random((24, 3), np.float32), GENERATOR.random((24, 1), np.float32)


def network(shape: tuple = (3,), kind: type = keras.Model) -> keras.Model:
    """A linear model; its weights are the same in each call."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    model = kind(inputs, keras.layers.Dense(1)(inputs))
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


class Sums(OwnLoss):
    """A model whose loss is a sum over examples; Keras' own step gives its number the weight of the batch."""

    def __init__(self):
        super().__init__()
        self.total, self.batches = keras.metrics.Sum(name="total"), keras.metrics.Sum(name="batches")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        errors = ops.square(y - y_pred)
        self.mean.update_state(ops.mean(errors), sample_weight=2.0)
        self.total.update_state(ops.mean(errors))
        self.batches.update_state(1.0)
        return ops.sum(errors)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {metric.name: metric.result() for metric in self.metrics}


def repeated_trainings():
    """0 if a training with dropout can be repeated, in two calls of fit, with another one between."""
    found = []
    for seed in (0, 1, 0):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        for _ in range(2):
            model.fit(X, Y, batch_size=8, verbose=0)
        found.append(model.get_weights()[0])
    assert not np.array_equal(found[0], found[1])
    return float(np.abs(found[2] - found[0]).max())


def metric_in_compute_loss():
    model = OwnLoss()
    model.compile("sgd")
    return model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)["squares"]


def numbers_with_weights():
    model = Sums()
    model.compile(keras.optimizers.SGD(0.01))
    return model.fit(X, Y, batch_size=9, epochs=2, shuffle=False, verbose=0).history


def compute_loss_of_the_object():
    model = network()
    model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: (
        3 * ops.mean(ops.square(y - y_pred))
    )
    return model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"][0]


def shuffle_within_batches():
    return network().fit(X, Y, batch_size=8, epochs=2, shuffle="batch", verbose=0).history["loss"][1]


def batches_of_numbers():
    data = tf.data.Dataset.from_tensor_slices((X[:, 0], Y)).batch(6)
    return network(shape=(1,)).evaluate(data, verbose=0)


def none_for_weights():
    def batches():
        while True:
            yield X[:6], Y[:6], None

    return network().fit(batches(), steps_per_epoch=2, verbose=0).history["loss"][0]


class Chosen(keras.Model):
    """Its predict_step gets x and y, and returns the rows above the mean of the batch, each with its double."""

    def predict_step(self, data):
        x, y = data
        errors = self(x) - y
        rows = tf.boolean_mask(errors, errors[:, 0] > ops.mean(errors))
        return ops.concatenate([rows, 2 * rows])


class Mean(keras.Model):
    """Its predict_step gets x, or (x,) from predict_on_batch, and returns a number."""

    def predict_step(self, data):
        return ops.mean(self(data[0]) if isinstance(data, tuple) else self(data) + 1)


class Ragged(keras.Model):
    """Returns ragged rows, sparse ones and dense ones."""

    def call(self, x):
        flat = x[..., 0]
        return tf.RaggedTensor.from_tensor(flat, padding=0.0), tf.sparse.from_dense(flat), flat[:, :2]


def rows_of_predict_step():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    return network(kind=Chosen).predict(data, verbose=0)


def numbers_of_predict_step():
    model = network(kind=Mean)
    return [model.predict(X, batch_size=7, verbose=0), model.predict_on_batch(X)]


def outputs_of_other_lengths():
    def batches():
        for length in (3, 5, 4):
            yield np.triu(np.ones((4, length), np.float32))[..., None]

    signature = tf.TensorSpec([None, None, 1])
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 1))
    padded = keras.Model(inputs, keras.layers.Dense(2)(inputs)).predict(data, verbose=0)
    ragged, sparse, dense = Ragged().predict(data.take(1).repeat(2), verbose=0)
    return [padded.to_list(), ragged.to_list(), tf.sparse.to_dense(sparse), dense]


class Unpacking(keras.Model):
    """Its steps unpack all parts of a batch."""

    def train_step(self, data):
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        x, y, _ = data
        return {"error": ops.mean(ops.abs(self(x) - y))}


def all_parts_of_a_batch():
    model = network(kind=Unpacking)
    found = [model.train_on_batch(X, Y), model.train_on_batch(X, Y, sample_weight=X[:, 0])]
    return [*found, model.test_on_batch(X, Y), *model.get_weights()]


class MoreValues(keras.Model):
    """Its compute_metrics returns more values: of the last batch, and computed with results of metrics."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        error = ops.mean(ops.abs(y - y_pred))
        return found | {"error": error, "quotient": found["mean_squared_error"] / found["mean_absolute_error"]}


class MoreResults(keras.Model):
    """Its get_metrics_result returns one more value."""

    def get_metrics_result(self):
        found = super().get_metrics_result()
        return found | {"quotient": found["mean_squared_error"] / found["mean_absolute_error"]}


class Recorder(keras.callbacks.Callback):
    """Keeps the logs of batches."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(dict(logs))


def values_under_new_names(kind: type = MoreValues):
    model, recorder = network(kind=kind), Recorder()
    model.compile("sgd", "mse", metrics=["mean_squared_error", "mean_absolute_error"])
    given = {"batch_size": 7, "verbose": 0}
    history = model.fit(X, Y, shuffle=False, callbacks=[recorder], validation_data=(X, Y), **given).history
    return [history, recorder.found, model.evaluate(X, Y, return_dict=True, **given), model.get_weights()]


def results_under_new_names():
    return values_under_new_names(MoreResults)


class Stop(keras.callbacks.Callback):
    """Requests the end of training, of an evaluation or of a prediction in a hook, at an index."""

    def __init__(self, attribute, hook, at=None):
        super().__init__()
        self.attribute, self.at = attribute, at
        setattr(self, hook, self.stop)

    def stop(self, index=None, logs=None):
        if self.at in (None, index):
            setattr(self.model, self.attribute, True)


def stopped_at_the_begin():
    found = []
    for hook, at, steps in (("on_train_begin", None, 1), ("on_epoch_begin", 1, 2)):
        model = network()
        model.compile("sgd", "mse", steps_per_execution=steps)
        given = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": [Stop("stop_training", hook, at)]}
        found += [model.fit(X, Y, epochs=3, validation_data=(X, Y), **given).history, model.get_weights()]
    return found


def stopped_evaluations_and_predictions():
    at_begin, after_two = Stop("stop_evaluating", "on_test_begin"), Stop("stop_evaluating", "on_test_batch_end", 1)
    model, given = network(), {"batch_size": 4, "verbose": 0}
    found = [model.evaluate(X, Y, callbacks=[one], **given) for one in (at_begin, after_two)]
    found.append(model.fit(X, Y, validation_data=(X, Y), shuffle=False, callbacks=[after_two], **given).history)
    return [*found, model.predict(X, callbacks=[Stop("stop_predicting", "on_predict_batch_end", 1)], **given)]


print(json.dumps({name: plain(globals()[name]()) for name in sys.argv[1:]}))
