"""Whether XLA compiles the forward and backward pass of a step."""

import types

import keras
import pytest

from tfdist import config as c
from tfdist.training import features
from tfdist.training.step.build_context import compiles_with_xla
from tfdist.zoo import models


@pytest.mark.parametrize(
    ("device_type", "fields", "deterministic", "supported", "compiled"),
    [
        ("GPU", {}, "0", True, True),
        ("CPU", {}, "0", True, False),
        ("CPU", {"xla": True}, "0", True, True),
        ("GPU", {"xla": False}, "0", True, False),
        ("GPU", {}, "1", True, False),
        ("GPU", {}, "0", False, False),
    ],
)
def test_xla_compiles_on_gpus_what_it_can_unless_the_config_says_otherwise(
    monkeypatch, device_type, fields, deterministic, supported, compiled
):
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", deterministic)
    layer = keras.layers.Dense(3)
    layer.supports_jit = supported
    model = keras.Sequential([keras.Input((4,)), layer])
    assert compiles_with_xla(c.Train(steps=1, **fields), device_type, model) == compiled


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
