"""Calls of tfdist that are refused on two devices: python tests/support/refused_calls.py OUT writes {name: message}."""

import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import fits
import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import config
from tfdist.cluster.cluster import Cluster

X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
WORDS = np.array([[1, 2, 0], [3, 0, 0]] * 4)


class Own(keras.Model):
    """Its step computes gradients and calls `STEP(model, gradients)`."""

    def __init__(self, step: Callable[..., Any]):
        super().__init__()
        self.net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        self.step = step

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.mean_squared_error(y, self.net(x)))
        self.step(self, tape.gradient(loss, self.net.trainable_variables))
        return {"loss": loss}

    def test_step(self, data):
        return self.train_step(data)


class OwnFunction(keras.Sequential):
    """Makes its functions by itself."""

    def make_train_function(self, force=False):
        super().make_train_function(force)

    def make_test_function(self, force=False):
        super().make_test_function(force)


class Counted(keras.layers.Dense):
    """Counts its calls in a variable that Keras does not track."""

    def __init__(self, units: int):
        super().__init__(units)
        self.calls = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="calls")

    def call(self, inputs):
        self.calls.assign_add(1)
        return super().call(inputs)


def applies(model: Own, gradients: list[Any]) -> None:
    model.optimizer.apply(gradients, model.net.trainable_variables)


def applies_in_loop(model: Own, gradients: list[Any]) -> None:
    def body(i: tf.Tensor) -> tuple[tf.Tensor]:
        applies(model, gradients)
        return (i + 1,)

    tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])


def attempts(cluster: Cluster) -> dict[str, Callable[[], Any]]:
    """Returns the calls by name."""

    def made(build: Callable[[], keras.Model], **keywords: Any) -> keras.Model:
        with cluster.scope():
            model = build()
            model.compile(**{"optimizer": "sgd", "loss": "mse"} | keywords)
        return model

    def plain(**keywords: Any) -> keras.Model:
        return made(lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), **keywords)

    def own(step: Callable[..., Any]) -> keras.Model:
        return made(lambda: Own(step))

    def counting() -> keras.Model:
        model = own(applies)
        model.steps = tf.Variable(0)
        return model

    def reads_words(**keywords: Any) -> keras.Model:
        def build() -> keras.Model:
            layers = [keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.GRU(2, return_sequences=True)]
            return keras.Sequential([keras.Input((3,)), *layers])

        return made(build, **keywords)

    def two_outputs() -> keras.Model:
        inputs = keras.Input((3,))
        return keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)])

    def fit(model: keras.Model, *data: Any, **keywords: Any) -> None:
        tfdist.fit(cluster, model, *data, verbose=0, **keywords)

    def function_of_object() -> keras.Model:
        model = plain()
        model.make_predict_function = lambda force=False: None
        return model

    def apply_of_object() -> keras.Model:
        model = plain()
        inner = model.optimizer.apply
        model.optimizer.apply = lambda gradients, variables=None: inner([0.5 * one for one in gradients], variables)
        return model

    def fit_by_other_optimizer() -> None:
        model = plain()
        fit(model, X, Y)
        with cluster.scope():
            model.optimizer = keras.optimizers.Adam()
        fit(model, X, Y)

    def own_function() -> keras.Model:
        return made(lambda: OwnFunction([keras.Input((3,)), keras.layers.Dense(2)]))

    ragged = tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1], [2, 3]]), Y[:2])).batch(2)
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    hidden_rows = rows.map(lambda x, y: (tf.reshape(x, [4, 3]), y))
    return {
        "applies_in_loop": lambda: fit(own(applies_in_loop), X, Y),
        "applies_in_evaluation": lambda: tfdist.evaluate(cluster, own(applies), X, Y, verbose=0),
        "variable_outside": lambda: fit(counting(), X, Y),
        "variable_unowned": lambda: fit(made(lambda: keras.Sequential([keras.Input((3,)), Counted(2)])), X, Y),
        "no_loss": lambda: fit(plain(loss=None), X, Y),
        "eager_ragged": lambda: fit(reads_words(run_eagerly=True), ragged),
        "weights_alone": lambda: fit(plain(), X, sample_weight=np.ones(8)),
        "class_weight_alone": lambda: fit(
            plain(), tf.data.Dataset.from_tensor_slices(X).batch(4), class_weight={0: 1.0, 1: 2.0}
        ),
        "class_weight_of_two": lambda: fit(made(two_outputs), X, [Y, Y], class_weight={0: 1.0, 1: 2.0}),
        "outputs": lambda: tfdist.predict(cluster, plain(), X, outputs="some"),
        "train_function": lambda: fit(own_function(), X, Y),
        "test_function": lambda: tfdist.evaluate(cluster, own_function(), X, Y, verbose=0),
        "predict_function": lambda: tfdist.predict(cluster, function_of_object(), X, verbose=0),
        "apply_of_object": lambda: fit(apply_of_object(), X, Y),
        "other_optimizer": fit_by_other_optimizer,
        "nothing": lambda: tfdist.predict(cluster, plain(), []),
        "hidden_rows": lambda: tfdist.predict(cluster, plain(), hidden_rows, verbose=0),
        "no_batches": lambda: fit(plain(), iter([]), steps_per_epoch=2),
        "batch_of_text": lambda: fit(plain(), iter(["text", "text"]), steps_per_epoch=2),
    }


def main() -> None:
    cluster = tfdist.connect(config.ClusterOptions(logical_devices=2))
    messages = fits.messages_of(attempts(cluster))
    pathlib.Path(sys.argv[1]).write_text(json.dumps(messages))


if __name__ == "__main__":
    main()
