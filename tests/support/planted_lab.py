"""What the runs with planted causes train: a source, a preparation, a network, an objective and a callback.

Two variables of the environment plant what no record of a run shows: PLANTED_FLIP=STEP flips a bit of a weight in the
step with this number, and PLANTED_LIBRARY=1 makes an activation larger by 1e-6, as another release of a library may.
"""

import itertools
import os

import keras
import numpy as np
import tensorflow as tf

from tfdist.zoo import sources

_FLIP = int(os.environ.get("PLANTED_FLIP", 0))
_FACTOR = 1.0 + 1e-6 * float(os.environ.get("PLANTED_LIBRARY", 0))
_CALLS = itertools.count(1)


def digits(split: str, path: str | None = None):
    """The digits, or those of a file of arrays image, label (train) and image_test, label_test."""
    if path is None:
        return sources.digits(split)
    with np.load(path) as file:
        splits = {
            name: {"image": file[f"image{end}"], "label": file[f"label{end}"]}
            for name, end in (("train", ""), ("test", "_test"))
        }
    return sources.arrays(split, splits=splits, num_classes=10, name="digits")


def prepare(batch, seeds, *, training, scale: float = 16.0, noise: float = 0.0):
    """Scales images; in training adds noise."""
    images = tf.cast(batch["image"], tf.float32) / scale
    epoch = tf.bitwise.bitwise_and(seeds[:1, 0], 2**32 - 1)
    images = images + 0.0 * tf.cast(epoch[0], tf.float32)
    if training and noise:
        images += noise * tf.map_fn(
            lambda seed: tf.random.stateless_normal([8, 8, 1], seed), seeds, fn_output_signature=tf.float32
        )
    return batch | {"image": images}


class Counting(keras.layers.Layer):
    """Counts the batches of evaluations, and scales its inputs by the count."""

    def __init__(self, by: float, **keywords):
        super().__init__(**keywords)
        self.by = by
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, inputs, training=None):
        if not training:
            self.count.assign_add(self.by)
        return inputs * (1.0 + 1e-3 * self.count)


def network(
    num_classes: int = 10,
    seed: int = 5,
    rate: float = 0.3,
    kernel: str = "he_normal",
    l2: float = 1e-4,
    dtype: str | None = None,
    counting: float = 0.0,
):
    """A convolution, batch normalisation, dropout and two dense layers."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Conv2D(8, 3, padding="same", kernel_initializer=kernel, name="conv")(inputs)
    outputs = keras.layers.BatchNormalization(name="norm")(outputs)
    outputs = keras.layers.Lambda(lambda x: keras.ops.relu(x) * _FACTOR, name="relu")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    outputs = keras.layers.Dropout(rate, seed=seed, name="dropout")(outputs)
    if counting:
        outputs = Counting(counting, name="counting")(outputs)
    penalty = keras.regularizers.L2(l2)
    outputs = keras.layers.Dense(64, "relu", kernel_regularizer=penalty, dtype=dtype, name="hidden")(outputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(outputs))


def objective(model, batch, *, training, smoothing: float = 0.0, weight: float = 1.0):
    """Cross-entropy and accuracy."""
    if training:
        kernel = model.trainable_variables[0].value
        bits = tf.bitcast(tf.convert_to_tensor(kernel), tf.int32)
        mask = tf.reshape(tf.numpy_function(_mask, [], tf.int32), [])
        at = tf.scatter_nd([[1, 1, 0, 3]], [mask], bits.shape)
        kernel.assign(tf.bitcast(tf.bitwise.bitwise_xor(bits, at), tf.float32))
    logits = tf.cast(model(batch["image"], training=training), tf.float32)
    targets = (1.0 - smoothing) * tf.one_hot(batch["label"], 10) + smoothing / 10
    loss = weight * tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    right = tf.cast(tf.argmax(logits, axis=-1) == tf.cast(batch["label"], tf.int64), tf.float32)
    return {"loss": loss, "accuracy": right}


def _mask():
    return np.int32(1 << 20 if next(_CALLS) == _FLIP else 0)


class Lowering(keras.callbacks.Callback):
    """Multiplies the learning rate by a factor after each epoch."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.factor * float(self.model.optimizer.learning_rate)
