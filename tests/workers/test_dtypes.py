"""Tensors of several dtypes in one step, and statistics of float64 on three replicas."""

import keras
import numpy as np
import on_workers
import pytest
import small_runs
import tensorflow as tf
import topologies

from tfdist import config as c

pytestmark = pytest.mark.usefixtures("own_process")


def two_types(num_classes: int = 10) -> keras.Model:
    """A network with an activity and a weight penalty, a layer of float64 and a counter in float64."""
    inputs = keras.Input((8, 8, 1))
    flat = keras.layers.Flatten()(inputs)
    hidden = keras.layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l2", name="hidden")(flat)
    counted = Counter(dtype="float64", name="counter")(keras.layers.Dense(8, dtype="float64", name="wide")(hidden))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(counted))


class Counter(keras.layers.Layer):
    """Counts its training steps."""

    def build(self, shape):
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1.0)
        return x


def wide_loss(model, batch, *, training):
    logits = tf.cast(model(batch["image"], training=training), tf.float64)
    return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)}


def constant_loss(model, batch, *, training):
    loss = wide_loss(model, batch, training=training)["loss"]
    return {"loss": tf.numpy_function(np.float64, [loss], tf.float64, stateful=False)}


def start(workdir, objective, replicas=1, model=f"{__name__}:two_types", **train):
    small_runs.train(
        workdir,
        model={"target": model},
        objective={"target": f"{__name__}:{objective}"},
        train=c.Train(steps=3, **train),
        evaluation=c.Evaluation(every=c.Every(steps=100)),
        cluster=c.ClusterOptions(logical_devices=replicas),
    )


def start_on_three(workdir):
    start(workdir, "wide_loss", replicas=3, precision="float16", clip_norm=1.0)


@pytest.mark.skipif(keras.__version__ < "3.14", reason="an activity_regularizer needs Keras 3.14 on several replicas")
def test_penalties_clipping_and_losses_of_several_dtypes_and_counters_of_float64(tmp_path):
    """In a process of its own, which has three devices."""
    on_workers.call(start_on_three, tmp_path)
    saved = topologies.arrays(tmp_path, step=3)
    assert saved["model/counter/steps"].dtype == np.float64
    assert saved["model/counter/steps"] in (0.0, 1.0, 2.0, 3.0)  # A step may have been skipped.
    assert topologies.records(tmp_path, "train")[-1]["loss"] > 0


def test_a_loss_without_gradients_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.objective has no gradient .* 2 trainable .*numpy_function"):
        start(tmp_path, "constant_loss", model="lab:linear")
