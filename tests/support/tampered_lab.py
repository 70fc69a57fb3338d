"""What the runs of tests/benchmark/tampered_runs.py train: a source, a preparation, a network and an objective."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.zoo import sources


def digits(split: str, path: str):
    """The digits of a file of arrays image, label (train) and image_test, label_test."""
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


def network(num_classes: int = 10, rate: float = 0.3):
    """A convolution, batch normalisation, dropout and two dense layers."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Conv2D(8, 3, padding="same", kernel_initializer="he_normal", name="conv")(inputs)
    outputs = keras.layers.BatchNormalization(name="norm")(outputs)
    outputs = keras.layers.ReLU(name="relu")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    outputs = keras.layers.Dropout(rate, seed=5, name="dropout")(outputs)
    penalty = keras.regularizers.L2(1e-4)
    outputs = keras.layers.Dense(64, "relu", kernel_regularizer=penalty, name="hidden")(outputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(outputs))


def objective(model, batch, *, training):
    """Cross-entropy and accuracy."""
    logits = tf.cast(model(batch["image"], training=training), tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
    right = tf.cast(tf.argmax(logits, axis=-1) == tf.cast(batch["label"], tf.int64), tf.float32)
    return {"loss": loss, "accuracy": right}
