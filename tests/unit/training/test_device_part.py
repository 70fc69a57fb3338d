"""config.data.finish: batches travel as bytes, and the run is the same to the bit."""

import numpy as np
import pytest
import small_runs
import tensorflow as tf

from tfdist import config as c
from tfdist.data import inputs as inputs_lib
from tfdist.training import execution
from tfdist.zoo.prepare import image

NORMALISED = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
AUGMENTED = {"pad": 2, "flip": True}
ADAPTED = []


def remember(model, read):
    """An `adapt` that notes what it reads."""
    ADAPTED.append(read(4)["image"])


def trained(folder, prepare, finish):
    """The type of the batches, and the loss and weights after three steps in two micro-batches."""
    source = {"target": "tfdist.zoo.sources:synthetic", "shape": (8, 8, 3), "num_examples": 64}
    parts = {"source": source, "prepare": prepare, "finish": finish, "evaluation_split": None, "batch_size": 16}
    run = small_runs.start(
        folder,
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (8, 8, 3), "hidden": (8,)},
        adapt={"target": f"{__name__}:remember"},
        data=c.Data(**parts),
        train=c.Train(steps=3, micro_batches=2),
    )
    data = run.feed.training(0, 3)
    totals = execution.make_train_runner(run).execute(run.cluster.distribute(data), 3).totals
    return data.element_spec["image"].dtype, totals["loss"], [w.numpy() for w in run.context.model.weights]


def on_the_host(batch, seeds, *, training):
    """`prepare:image` as one function."""
    return image(batch, seeds, training=training, **AUGMENTED, **NORMALISED)


BY_TWO = (
    {"target": "tfdist.zoo.prepare:image_bytes", **AUGMENTED},
    {"target": "tfdist.zoo.prepare:normalised", **NORMALISED},
)
DIVIDED = {"target": "tfdist.zoo.prepare:image", **AUGMENTED, **NORMALISED}, None


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "finish"), [BY_TWO, DIVIDED], ids=["two functions", "divided"])
def test_bytes_to_the_device_give_the_same_bits(own_signals, tmp_path, prepare, finish):
    ADAPTED.clear()
    floats, loss, weights = trained(tmp_path, {"target": f"{__name__}:on_the_host"}, None)
    assert floats == tf.float32
    small, same_loss, same_weights = trained(tmp_path, prepare, finish)
    assert small == tf.uint8 and loss == same_loss
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    first, second = ADAPTED
    assert first.dtype == tf.float32
    np.testing.assert_array_equal(first, second)


def test_what_must_be_normalised_on_the_host_is_not_normalised_again():
    batch = {"image": tf.constant(np.arange(2 * 4 * 4).reshape([2, 4, 4, 1]) % 9, np.float32), "label": tf.range(2)}
    seeds = tf.zeros([2, 2], tf.int64)
    for training in (True, False):
        expected = image(batch, seeds, training=training)
        inputs = inputs_lib.open_inputs(small_runs.config(data=c.Data(prepare={"target": "tfdist.zoo.prepare:image"})))
        prepared = inputs.prepare(batch, seeds, training=training)
        assert prepared["image"].dtype == tf.float32
        finished = inputs.prepare_all(batch, seeds, training=training)
        for name, value in expected.items():
            np.testing.assert_array_equal(finished[name], value)
