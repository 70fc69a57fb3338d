"""What `config.train.virtual_replicas` refuses, with the reason, and what it says of a run from another machine."""

import json
import types

import keras
import pytest

from tfdist import config as c
from tfdist.training import features
from tfdist.training.step.variants import virtual_replicas


def make(**fields):
    sections = {"data": {"batch_size": 64}, "train": {"epochs": 1, "virtual_replicas": 8}, "communication": {}}
    for name, value in fields.items():
        section, field = name.split("__")
        sections[section][field] = value
    kinds = {"data": c.Data, "train": c.Train, "communication": c.Communication}
    return c.Config(model={"target": "x:y"}, **{name: kinds[name](**values) for name, values in sections.items()})


@pytest.mark.parametrize(
    ("fields", "replicas", "message"),
    [
        ({}, 3, r"virtual_replicas=8 cannot be used: there are 3 replicas, .* must be one of 1, 2, 4, 8\."),
        ({"data__pipeline": "textbook"}, 2, r"config.data.pipeline is set, and TensorFlow divides batches"),
        ({"data__shards": "fixed"}, 2, r"config.data.shards is set, and the examples of a batch depend"),
        ({"communication__dtype": "bfloat16"}, 2, r"config.communication.dtype is set, and integers are sent"),
        ({"train__virtual_replicas": 2048, "data__batch_size": 2048}, 2, r"virtual_replicas must be from 1 to 1024"),
        ({"data__batch_size": 36}, 2, r"batch_size=36 cannot be divided among 8 replicas: set it to 32 or 40"),
    ],
)
def test_configs_that_depend_on_the_number_of_replicas_are_refused(fields, replicas, message):
    config = make(**fields)
    with pytest.raises(ValueError, match=message):
        features.validate_config(config)
        virtual_replicas.open_virtual_replicas(config, replicas)


def test_a_start_on_another_machine_is_noted(tmp_path):
    run = types.SimpleNamespace(workdir=tmp_path, cluster=types.SimpleNamespace(is_chief=True))
    assert list(virtual_replicas._changes(run)) == []
    before = {"processor": "Other 9000", "onednn": {"enabled": True}}
    (tmp_path / "environment.json").write_text(json.dumps(before))
    found = list(virtual_replicas._changes(run))
    assert found[0].startswith("the processor was Other 9000 in the last start and is ")


class Counting(keras.layers.Layer):
    """A layer that counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        return x


def grouped(group_size):
    """A normalisation over groups of examples."""
    layer = keras.layers.BatchNormalization(name="norm")
    layer.group_size = group_size
    return layer


@pytest.mark.parametrize(
    ("layer", "total", "message"),
    [
        (keras.layers.BatchNormalization(synchronized=True, name="norm"), 8, "'norm' normalises over the global batch"),
        (Counting(name="count"), 8, r"the layer 'count' has the state 'calls' of type int32, not float"),
        (keras.layers.Dense(3, dtype="float64", name="wide"), 8, "wide/kernel is of float64"),
        (keras.layers.Dense(3, kernel_regularizer="l2"), 6, r"penalties, which are divided exactly by powers of two"),
        (grouped(4), 8, r"'norm' .* groups of 4 examples, which do not divide the 6 of a shard"),
    ],
)
def test_models_that_see_more_than_a_shard_are_refused(layer, total, message):
    model = keras.Sequential([keras.Input([4]), layer, keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=message):
        virtual_replicas._check_model(make(data__batch_size=48), total, model)
    plain = keras.Sequential([keras.Input([4]), keras.layers.BatchNormalization(), grouped(6), keras.layers.Dense(2)])
    virtual_replicas._check_model(make(data__batch_size=48), 8, plain)
