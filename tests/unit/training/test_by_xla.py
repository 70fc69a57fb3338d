"""Whether XLA compiles the forward and backward pass of a step."""

import dataclasses

import keras
import pytest

from tfdist import config as c
from tfdist.training.step.build_context import by_xla


def model(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("device_type", "fields", "compiled"),
    [
        ("GPU", {}, True),
        ("CPU", {}, False),
        ("CPU", {"xla": True}, True),
        ("GPU", {"xla": False}, False),
        ("GPU", {"recompute": ["dense"]}, False),
        ("GPU", {"virtual_replicas": 8}, False),
    ],
)
def test_xla_compiles_on_gpus_unless_the_config_says_otherwise(monkeypatch, device_type, fields, compiled):
    monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
    train = dataclasses.replace(c.Train(steps=1), **fields)
    assert by_xla(train, device_type, model()) == compiled


def test_xla_does_not_compile_what_it_cannot(monkeypatch):
    monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
    train = c.Train(steps=1)
    assert not by_xla(train, "GPU", model(), communicates=True)
    unsupported = keras.layers.Dense(3)
    unsupported.supports_jit = False
    assert not by_xla(train, "GPU", model(unsupported))
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    assert not by_xla(train, "GPU", model())
