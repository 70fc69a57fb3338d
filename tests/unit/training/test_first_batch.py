"""What the start of a run says about prepared examples, and what it warns of."""

import re
import types

import keras
import numpy as np
import pytest
import small_runs
import tensorflow as tf
import topologies

from tfdist import config as c
from tfdist.training.reporting import first_batch
from tfdist.zoo import sources

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]


def source(split, labels="0123"):
    """Random images, whose labels repeat."""
    image = np.random.default_rng(0).integers(0, 256, (128, 4, 4, 1)).astype(np.uint8)
    label = np.array([int(labels[i % len(labels)]) for i in range(len(image))])
    found = sources.arrays(split, splits={"train": {"image": image, "label": label}}, num_classes=12)
    found.num_classes = None
    return found


def network(scaled=False):
    first = [keras.layers.Rescaling(1 / 255)] if scaled else []
    return keras.Sequential([keras.Input((4, 4, 1)), *first, keras.layers.Flatten(), keras.layers.Dense(4)])


@pytest.fixture
def train(tmp_path, capsys):
    def run(scaled=False, prepare="image", rate=1e-3, epochs=1, **arguments):
        small_runs.train(
            tmp_path,
            model={"target": f"{__name__}:network", "scaled": scaled},
            data=c.Data(
                source={"target": f"{__name__}:source", **arguments},
                prepare={"target": f"tfdist.zoo.prepare:{prepare}"},
                evaluation_split=None,
                batch_size=32,
            ),
            optimizer={"target": "keras.optimizers:Adam"},
            learning_rate=c.LearningRate(peak=rate),
            train=c.Train(epochs=epochs),
            checkpoint=c.Checkpoint(export=False),
        )
        said = capsys.readouterr()
        warnings = {line["text"] for line in topologies.records(tmp_path, "warning")}
        assert warnings == {*re.findall("^tfdist: worker 0: (.*)$", said.err, re.MULTILINE)}
        return said.out, " ".join(said.err.split())

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ()),
        ({"scaled": True, "epochs": 13}, ("scaled twice: config.data.prepare returns 0 to 1", "layer 'rescaling'")),
        ({"labels": "123", "rate": 0.5}, ("no label of the first 64", "config.learning_rate.peak=0.5 is 500 times")),
        ({"labels": "2"}, ("labels of the first 64 training examples are all 2",)),
        ({"scaled": True, "prepare": "identity"}, ()),
    ],
)
def test_a_start_says_the_range_of_values_and_warns_of_mistakes(train, options, words):
    out, error = train(**options)
    assert options or "examples have image float32 0 to 1, label int64 0 to 3" in out
    assert all(word in error for word in words)
    assert words or not ("scaled" in error or "no label" in error or "labels of the first" in error)


def apart(model, batch, *, training):
    """The label as a column, as the output is."""
    error = model(batch["image"], training=training)[:, :1] - tf.cast(batch["label"], tf.float32)[:, tf.newaxis]
    return {"loss": error[:, 0] ** 2, "noise": tf.random.normal([len(error)])}


def together(model, batch, *, training):
    """The difference of shapes [n, 1] and [n] is [n, n]."""
    error = model(batch["image"], training=training)[:, :1] - tf.cast(batch["label"], tf.float32)
    return {"loss": tf.reduce_mean(error**2, axis=1)}


@pytest.mark.parametrize(("function", "count"), [(apart, 0), (together, 1)])
def test_an_objective_that_lets_examples_meet_is_named(function, count):
    keras.utils.set_random_seed(0)
    objective = types.SimpleNamespace(function=function, model=network(scaled=True))
    found = [*first_batch.coupled(objective, source("train").read(tf.range(8, dtype=tf.int64)))]
    assert len(found) == count and all("'loss' of an example depends on other examples" in each for each in found)


def test_the_check_of_an_objective_changes_no_variable():
    counted, plain = keras.Variable(0.0), tf.Variable(0.0)

    def count(model, batch, *, training):
        counted.assign(counted + 1.0)
        plain.assign_add(1.0)
        return together(model, batch, training=training)

    objective = types.SimpleNamespace(function=count, model=network(scaled=True))
    assert [*first_batch.coupled(objective, source("train").read(tf.range(8, dtype=tf.int64)))]
    assert float(counted.value) == float(plain) == 0.0


@pytest.mark.parametrize(("labels", "words"), [([1, 2, 3, 4], "begin at 0"), ([0, 1, 7, 4], "to 8.")])
def test_labels_beyond_the_outputs_are_named_before_the_first_step(labels, words):
    (found,) = first_batch.label_notes(np.array(labels * 16), (None, 4))
    assert f"there is a label {max(labels)}, and the model has 4 outputs" in found and words in found
