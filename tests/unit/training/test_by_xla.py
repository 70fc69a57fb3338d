"""Whether XLA compiles the forward and backward pass of a step."""

import types

import keras
import pytest

from tfdist import config as c
from tfdist.training import features
from tfdist.training.step.build_context import compiles_with_xla
from tfdist.zoo import models


def model(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("device_type", "fields", "compiled"),
    [("GPU", {}, True), ("CPU", {}, False), ("CPU", {"xla": True}, True), ("GPU", {"xla": False}, False)],
)
def test_xla_compiles_on_gpus_unless_the_config_says_otherwise(monkeypatch, device_type, fields, compiled):
    monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
    assert compiles_with_xla(c.Train(steps=1, **fields), device_type, model()) == compiled


def test_xla_does_not_compile_what_it_cannot(monkeypatch):
    monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
    train = c.Train(steps=1)
    unsupported = keras.layers.Dense(3)
    unsupported.supports_jit = False
    assert not compiles_with_xla(train, "GPU", model(unsupported))
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    assert not compiles_with_xla(train, "GPU", model())


@pytest.mark.parametrize(
    ("fields", "replicas", "compiled"),
    [
        ({}, 2, True),
        ({"recompute": ["dense"]}, 2, False),
        ({"virtual_replicas": 8}, 2, False),
        ({"normalization": "sync_batch"}, 2, False),
        ({"normalization": "batch", "group_size": 16}, 2, True),
        ({"normalization": "batch", "group_size": 16}, 4, False),
    ],
)
def test_features_say_whether_xla_can_compile_the_model(fields, replicas, compiled):
    of_model = {name: fields[name] for name in ("normalization", "group_size") if name in fields}
    of_train = {name: value for name, value in fields.items() if name not in of_model}
    made = c.Config(model={}, data=c.Data(source={}, batch_size=32), train=c.Train(steps=1, **of_train))
    cluster = types.SimpleNamespace(num_replicas=replicas)
    network = models.small_cnn(num_classes=10, **of_model)
    assert all(feature.compiles(made, cluster, network) for feature in features.ALL) == compiled
