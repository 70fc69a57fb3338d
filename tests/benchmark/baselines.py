"""Baselines for tfdist: the bare arithmetic of a step, and the loop that computing centres teach."""

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.benchmark.workloads import Workload
from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.config import specs
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.updates import fused_updates

# Runs a number of steps and waits until they are finished.
Runner = Callable[[int], None]
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def floor(workload: Workload, config: config_lib.Config, *, fused: bool) -> Runner:
    """The arithmetic of a step in one `tf.function`, on one batch in memory, without a strategy.

    Args:
        fused: the normalisation of tfdist.zoo, the fused update, and many steps in one call of the function; otherwise
            those of Keras, and one.
    """
    keras.config.set_dtype_policy(POLICIES[config.train.precision])
    model = specs.build(config.model, field="config.model") if fused else keras_model(config)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if fused:
        optimizer_lib.accept_summed_gradients(optimizer, fused_updates.fuse(optimizer))
    optimizer.build(model.trainable_variables)
    objective = specs.partial(config.objective, field="config.objective", positional=2, training=True)
    pixels, labels = images(config)
    batch = {"image": _scaled(tf.constant(pixels[: workload.batch])), "label": tf.constant(labels[: workload.batch])}

    def one() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(objective(model, batch, training=True)["loss"])
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def many(steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([])
        for _ in tf.range(steps):
            loss = one()
        return loss

    single = tf.function(one)

    def run(steps: int) -> None:
        if fused:
            many(tf.constant(steps)).numpy()
            return
        for _ in range(steps):
            loss = single()
        loss.numpy()

    return run


def textbook(workload: Workload, config: config_lib.Config, cluster: Cluster) -> Runner:
    """The loop of TensorFlow's tutorial on custom training, as computing centres publish it, with Keras' layers."""
    keras.config.set_dtype_policy(POLICIES[config.train.precision])
    strategy, global_batch = cluster.strategy, config.data.batch_size
    dataset = textbook_dataset(*images(config), workload.pad, global_batch)
    with strategy.scope():
        model = keras_model(config)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    distributed = strategy.experimental_distribute_dataset(dataset)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = cross_entropy(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce("SUM", losses, axis=None)

    epochs = iter(())

    def run(steps: int) -> None:
        nonlocal epochs
        total = 0.0
        for _ in range(steps):
            batch = next(epochs, None)
            if batch is None:
                epochs = iter(distributed)
                batch = next(epochs)
            total += train_step(*batch)
        float(total)

    return run


def textbook_dataset(images: np.ndarray, labels: np.ndarray, pad: int, batch: int) -> tf.data.Dataset:
    """The pipeline of the tutorials: shuffle, map each example, batch, prefetch."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000)
    dataset = dataset.map(functools.partial(augment, pad=pad), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch).prefetch(tf.data.AUTOTUNE)


def augment(image: tf.Tensor, label: tf.Tensor, *, pad: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Crops, flips and scales one image, uint8 [h, w, c], to float32."""
    if pad:
        height, width, channels = image.shape
        image = tf.image.resize_with_crop_or_pad(image, height + 2 * pad, width + 2 * pad)
        image = tf.image.random_crop(image, (height, width, channels))
        image = tf.image.random_flip_left_right(image)
    return _scaled(image), label


def _scaled(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images, tf.float32) / 255.0


def images(config: config_lib.Config) -> tuple[np.ndarray, np.ndarray]:
    """All examples of a workload: uint8 [n, height, width, channels], and their labels [n]."""
    with np.load(config.data.source["path"]) as file:
        return file["x_train"], file["y_train"]


def keras_model(config: config_lib.Config) -> keras.Model:
    """The network of a workload with Keras' layers."""
    # A clone has them: the fused computation is not part of a layer's configuration.
    return keras.models.clone_model(specs.build(config.model, field="config.model"))
