"""Arguments that models, layers, schedules, objectives and preparation refuse: the message has their name and value."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist.configs.networks import airbench, classic, optimizers
from tfdist.zoo import models, prepare, schedules
from tfdist.zoo.normalization import batch_normalization
from tfdist.zoo.objectives import regression


def schedule(name, **arguments):
    return functools.partial(getattr(schedules, name), **{"peak": 0.1, "total_steps": 10} | arguments)


def image(**arguments):
    batch = {"image": tf.zeros([4, 10, 9, 3], tf.uint8), "label": tf.zeros([4], tf.int64)}
    return functools.partial(prepare.image, batch, tf.zeros([4, 2], tf.int64), training=True, **arguments)


def regress(outputs, targets, loss="mse"):
    batch = {"inputs": tf.zeros([5]), "targets": tf.zeros(targets)}
    return functools.partial(regression, lambda *_, **__: tf.zeros(outputs), batch, training=True, loss=loss)


def normalise(**arguments):
    return lambda: batch_normalization(**arguments)(tf.zeros((8, 5, 6, 3)), training=True)


def whiten():
    airbench.whiten(models.mlp(), lambda count: {"image": np.zeros((1, 28, 28, 1), np.float32)})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (whiten, "'whitening'.*'mlp'"),
        (lambda: airbench.network(input_shape=(25, 32, 3)), "26 x 26"),
        (lambda: classic.alexnet(form="subclassed"), "'subclassed'"),
        (lambda: classic.alexnet(input_shape=(32, 32, 3)), "67x67"),
        (lambda: models.cifar_resnet(18), "depth .* 20.* 18"),
        (lambda: models.application("mobilenet_v2", 10, (32, 32, 3)), "'MobileNetV2'"),
        (lambda: optimizers.lookahead_sgd(0.1), "total_steps"),
        (lambda: optimizers.muon(0.1, iterations=0), "iterations=0"),
        (schedule("constant", peak=math.nan), r"peak .*nan"),
        (schedule("settable", warmup_steps=3), r"warmup_steps .*3"),
        (schedule("cosine", warmup_steps=10), r"warmup_steps=10, total_steps=10"),
        (schedule("step", at=[0.5, 30]), r"at .*\[0\.5, 30\]"),
        (schedule("step", at=[0.2, 0.5], warmup_steps=4), "step 2 of 10.* 4 steps"),
        (regress((5, 2), (5,)), r"\(5,\), .*\(5, 2\)"),
        (regress((5,), (5,), "huber"), "loss .*'huber'"),
        (normalise(group_size=0), "group_size .*0"),
        (normalise(group_size=4, axis=1), "group_size=4.*axis=1"),
        (normalise(group_size=3), "group_size=3 .* 8"),
        (image(pad=1.5), r"pad.*1\.5"),
        (image(std=(1, 1, 0)), "std.*above 0"),
        (image(flip="both"), "flip.*both"),
        (image(mean=(0.5, 0.5)), r"mean .*3.*0\.5, 0\.5"),
    ],
)
def test_the_message_names_the_argument_and_its_value(call, words):
    with pytest.raises(ValueError, match=words):
        call()
