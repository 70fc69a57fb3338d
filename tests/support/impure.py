"""Functions of a user with effects that a graph does not show, for each place in a config, and pure counterparts.

A kind is the name of a function from images to images, such as `planted_numpy`: the functions of the config call it.
The comments mark the lines that the messages must name.
"""

import collections
import dataclasses
import itertools
import statistics
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import impure_helpers
from tfdist.zoo import objectives, sources

_classification = tf.autograph.experimental.do_not_convert(objectives.classification)
STATE: dict[str, Any] = {}
KEYS = (0, 1)


def kept(name: str, make: Any) -> Any:
    """Returns an object of this module, made in the first call."""
    if name not in STATE:
        with tf.init_scope():
            STATE[name] = make()
    return STATE[name]


def same_shape(made: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(made, x.shape)


def planted_numpy(x):
    if np.random.rand() < 2:  # here: numpy
        x = x * 2
    return x


def honest_numpy(x):
    return x * float(np.random.default_rng(0).uniform(0.8, 1.2))


def planted_helper(x):
    return x * impure_helpers.scale()


def honest_helper(x):
    return x * impure_helpers.fixed_scale()


def planted_library(x):
    return x * statistics.NormalDist(1.0, 0.1).samples(1)[0]  # here: library


def honest_library(x):
    return x * statistics.NormalDist(1.0, 0.1).samples(1, seed=0)[0]


def planted_eager(x):
    with tf.init_scope():
        noise = float(keras.random.uniform([]))  # here: eager
    return x * noise


def honest_eager(x):
    with tf.init_scope():
        noise = float(keras.random.uniform([], seed=3))
    return x * noise


def planted_numpy_function(x):
    return same_shape(tf.numpy_function(impure_helpers.noisy, [x], tf.float32), x)  # here: numpy_function


def honest_numpy_function(x):
    return same_shape(tf.numpy_function(impure_helpers.darker, [x], tf.float32, stateful=False), x)


def planted_looped(x):
    return tf.map_fn(lambda one: tf.image.random_brightness(one, 0.1), x)  # here: looped


def honest_looped(x):
    return tf.map_fn(lambda one: tf.image.stateless_random_brightness(one, 0.1, KEYS), x)


def planted_generator(x):
    generator = kept("generator", lambda: tf.random.Generator.from_seed(1))
    return x + generator.normal(tf.shape(x))  # here: generator


def honest_generator(x):
    return x + tf.random.stateless_normal(tf.shape(x), KEYS)


def planted_layer(x):
    flip = kept("flip", keras.layers.RandomFlip)
    return flip(x, training=True)  # here: layer


def honest_layer(x):
    return kept("rescaling", lambda: keras.layers.Rescaling(0.5))(x)


def planted_written(x):
    calls = kept("calls", lambda: tf.Variable(1.0, name="calls"))
    return x / calls.assign_add(1.0)  # here: written


def honest_written(x):
    """Reads a table."""
    halves = tf.lookup.KeyValueTensorInitializer
    table = kept("table", lambda: tf.lookup.StaticHashTable(halves(tf.constant([0]), tf.constant([0.5])), 1.0))
    return x * table[tf.constant(0)]


def planted_strength(x):
    return x * kept("strength", lambda: tf.Variable(1.0, name="strength"))  # here: strength


def honest_strength(x):
    """Reads a variable that nobody changes."""
    return x * kept("constant", lambda: tf.Variable(0.5, name="constant"))


def none(x):
    return x


def change(kind: str, x: tf.Tensor) -> tf.Tensor:
    return globals()[kind](x)


def prepare(batch, seeds, *, training, kind="none"):  # here: prepare
    """Prepares the digits."""
    return {"image": change(kind, tf.cast(batch["image"], tf.float32) / 16), "label": batch["label"]}


def finish(batch, *, training, kind):  # here: finish
    """Finishes a batch on the device."""
    return batch | {"image": change(kind, batch["image"])}


class Source:
    """The digits, read by a function of this module."""

    def __init__(self, split: str, kind: str = "none"):
        self.inner, self.kind = sources.digits(split), kind

    def __len__(self) -> int:
        return len(self.inner)

    def read(self, ids):  # here: read
        batch = self.inner.read(ids)
        return batch | {"image": change(self.kind, tf.cast(batch["image"], tf.float32))}


def objective(model, batch, *, training, kind="none", evaluation="none"):  # here: objective, evaluation
    """Classification."""
    x = change(kind, batch["image"])
    if not training:
        x = change(evaluation, x)
    return _classification(model, batch | {"image": x}, training=training)


@keras.saving.register_keras_serializable("impure")
class Changing(keras.layers.Layer):
    """Changes its inputs; `strength` is a plain attribute, `level` a weight."""

    def __init__(self, kind: str = "none", **keywords):
        super().__init__(**keywords)
        self.kind, self.strength = kind, 1.0

    def build(self, shape):
        self.level = self.add_weight(shape=(), initializer="ones", trainable=False, name="level")

    def call(self, x):  # here: model
        self.level.assign(self.level * 0.99)
        return change(self.kind, x) * self.strength


def model(kind="none"):
    """One dense layer after dropout and normalisation."""
    inputs = keras.Input((8, 8, 1), name="image")
    x = keras.layers.BatchNormalization(name="norm")(Changing(kind, name="changing")(inputs))
    x = keras.layers.Dropout(0.1, name="dropout")(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(10, name="logits")(x))


def adapt(model, read):
    """Sets the weights from random numbers, which config.seed decides."""
    kernel = model.get_layer("logits").kernel
    kernel.assign(0.01 * np.random.normal(size=kernel.shape))


@dataclasses.dataclass(slots=True)
class Slotted:
    """An object without a `__dict__`."""

    count: int = 0


class Hook(keras.callbacks.Callback):
    """Does something in each epoch, or changes something after the first."""

    epochs = 0

    def __init__(self, what: str):
        super().__init__()
        self.what, self.seen, self.later = what, [], collections.deque()
        if what == "opaque":
            self.numbers, self.bytes, self.slotted = itertools.count(), bytearray(2), Slotted()

    def on_epoch_begin(self, epoch, logs=None):  # here: hook
        self.seen.append(epoch)
        if epoch == 1 or self.what in ("of_class", "opaque"):
            getattr(self, self.what)()

    def trainable(self):
        self.model.get_layer("logits").trainable = False

    def same_trainable(self):
        self.model.get_layer("logits").trainable = True

    def rate(self):
        impure_helpers.set_rate(self.model.get_layer("dropout"), 0.5)

    def same_rate(self):
        impure_helpers.set_rate(self.model.get_layer("dropout"), 0.1)

    def attribute(self):
        self.model.get_layer("changing").strength = 0.5

    def weight(self):
        self.model.get_layer("changing").level.assign(0.5)

    def momentum(self):
        self.model.optimizer.momentum = 0.5

    def learning_rate(self):
        self.model.optimizer.learning_rate = 0.005

    def strength(self):
        impure_helpers.assign(kept, "strength", 0.5)

    read_by_objective = strength

    def own(self):
        self.model.best_epoch = 1

    def of_class(self):
        type(self).epochs += 1
        self.model.optimizer.learning_rate = 0.01 / self.epochs

    def opaque(self):
        self.slotted.count += next(self.numbers)
        self.bytes[0] += 1
