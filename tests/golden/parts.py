"""What the configs and the script of the golden runs name: a model, a prepare function and a callback."""

import os
import signal
from typing import Any

import keras
import tensorflow as tf

from tfdist.zoo import prepare, stateless_random
from tfdist.zoo.normalization import batch_normalization

# Without AutoGraph, which takes longer than to trace it.
_image = tf.autograph.experimental.do_not_convert(prepare.image)

# Set to a number of steps, it makes the callback `Stop` ask the run to stop after them.
STOP_AFTER = "GOLDEN_STOP_AFTER"
# An example that is damaged in the second epoch alone.
_DAMAGED_EPOCH, _DAMAGED_EXAMPLE = 1, 7


def everything(num_classes: int = 10) -> keras.Model:
    """Returns a convolution, synchronised normalisation, dropout, a nested list of layers and an L2 penalty."""
    penalty = keras.regularizers.L2(1e-3)
    images = keras.Input((8, 8, 1), name="image")
    hidden = keras.layers.Conv2D(6, 3, use_bias=False, kernel_regularizer=penalty, name="conv")(images)
    hidden = keras.layers.BatchNormalization(synchronized=True, momentum=0.9, name="norm")(hidden)
    hidden = keras.layers.Flatten(name="flatten")(keras.layers.ReLU(name="relu")(hidden))
    hidden = keras.layers.Dropout(0.2, seed=5, name="dropout")(hidden)
    outputs = keras.layers.Dense(num_classes, kernel_regularizer=penalty, name="logits")(hidden)
    return keras.Model(images, outputs, name="everything")


def blocks(normalization: str | None = None, group_size: int | None = None) -> keras.Model:
    """Returns a convolution, dropout and two dense layers; `normalization` as in `tfdist.zoo.models`, or none."""
    outputs = images = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Conv2D(4, 3, activation="relu", name="block_conv")(outputs)
    if normalization is not None:
        synchronized = normalization == "sync_batch"
        norm = batch_normalization(group_size=group_size, synchronized=synchronized, momentum=0.8, name="norm")
        outputs = norm(outputs)
    outputs = keras.layers.Dropout(0.2, seed=5, name="block_dropout")(keras.layers.Flatten(name="flatten")(outputs))
    outputs = keras.layers.Dense(8, activation="tanh", name="block_dense")(outputs)
    return keras.Model(images, keras.layers.Dense(10, dtype="float32", name="logits")(outputs), name="blocks")


def rows() -> keras.Model:
    """Returns a model that looks up a row of a table for each pixel; its images have the values 0 to 16."""
    images = keras.Input((8, 8, 1), name="image")
    numbers = keras.ops.cast(keras.layers.Flatten(name="flatten")(images), "int32")
    outputs = keras.layers.Embedding(40, 3, name="table")(numbers)
    outputs = keras.layers.Dropout(0.2, seed=5, name="dropout")(keras.layers.Flatten(name="together")(outputs))
    return keras.Model(images, keras.layers.Dense(10, name="logits")(outputs), name="rows")


def damaged(
    batch: dict[str, tf.Tensor], seeds: tf.Tensor, *, training: bool, cutout: int = 0, **options: Any
) -> dict[str, tf.Tensor]:
    """Prepares images as `prepare.image` does, and sets a square of `cutout` pixels to 0 in each.

    One example becomes NaN in one epoch, so that one update is left out.
    """
    batch = _image(batch, seeds, training=training, **options)
    if not training:
        return batch
    if cutout:
        batch["image"] = _cut_out(batch["image"], seeds, cutout)
    # Rows of `seeds` are ((seed << 32) | epoch, example).
    bad = (tf.bitwise.bitwise_and(seeds[:, 0], 0xFFFFFFFF) == _DAMAGED_EPOCH) & (seeds[:, 1] == _DAMAGED_EXAMPLE)
    images = tf.where(bad[:, tf.newaxis, tf.newaxis, tf.newaxis], float("nan"), batch["image"])
    return batch | {"image": images}


def _cut_out(images: tf.Tensor, seeds: tf.Tensor, size: int) -> tf.Tensor:
    draws = stateless_random.uniform(seeds, 1, 2)

    def outside(centres: tf.Tensor, length: int) -> tf.Tensor:
        first = tf.cast(centres * length, tf.int32)[:, tf.newaxis] - size // 2
        pixels = tf.range(length)
        return (pixels < first) | (pixels >= first + size)

    keep = (
        outside(draws[:, 0], images.shape[1])[:, :, tf.newaxis] | outside(draws[:, 1], images.shape[2])[:, tf.newaxis]
    )
    return images * tf.cast(keep, images.dtype)[..., tf.newaxis]


def rates() -> keras.callbacks.Callback:
    """Returns a callback that multiplies the learning rate before each epoch."""
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.7 * rate)


def stop_if_due(optimizer: keras.optimizers.Optimizer) -> None:
    """Sends SIGTERM to its own process if the optimizer has made the number of steps that STOP_AFTER sets."""
    if STOP_AFTER in os.environ and int(optimizer.iterations.numpy()) == int(os.environ[STOP_AFTER]):
        os.kill(os.getpid(), signal.SIGTERM)


class Stop(keras.callbacks.Callback):
    """Sends SIGTERM to its own process after the number of steps that an environment variable sets, if it is set.

    It watches every batch, of training and of evaluation, so that each call makes one step: how sums are split into
    calls would otherwise depend on the clock, and so their last bit.
    """

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Asks the run to stop where it is due."""
        stop_if_due(self.model.optimizer)

    def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Does nothing."""
