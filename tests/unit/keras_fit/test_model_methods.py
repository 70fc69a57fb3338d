"""What `python -m tfdist.run` replaces in Keras' models."""

import functools
import types

import keras
import pytest
import tensorflow as tf

from tfdist.config.patching import patch
from tfdist.keras_fit.script import model_methods


class OwnCompile(keras.Model):
    def compile(self, **keywords):
        super().compile("sgd", **keywords)


class OwnStep(OwnCompile):
    def train_step(self, data):
        return {}


class NoXla(OwnCompile):
    def __init__(self):
        super().__init__()
        self.words = keras.layers.StringLookup(vocabulary=["a"])


@pytest.mark.parametrize(
    ("device_type", "replicas", "kind", "compiled"),
    [
        ("GPU", 1, OwnCompile, True),
        ("GPU", 2, OwnCompile, False),
        ("CPU", 1, OwnCompile, False),
        ("GPU", 1, OwnStep, False),
        ("GPU", 1, NoXla, False),
    ],
)
def test_auto_means_xla_on_one_gpu_where_it_can_compile(monkeypatch, device_type, replicas, kind, compiled):
    devices = [types.SimpleNamespace(device_type=device_type)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)
    cluster = types.SimpleNamespace(device_type=device_type, num_replicas=replicas)

    def jit_compile(**keywords):
        model = kind()
        model.compile(**keywords)
        return model.jit_compile

    with patch(keras.Model, "compile", functools.partial(model_methods.compile_for, cluster)):
        assert (jit_compile(), jit_compile(jit_compile=False)) == (compiled, False)
        assert jit_compile(jit_compile=True) == (kind is not NoXla)
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    with patch(keras.Model, "compile", functools.partial(model_methods.compile_for, cluster)):
        assert not jit_compile()


def test_variables_are_replicated_after_clear_session():
    made = []

    def noted(next_creator, **keywords):
        variable = next_creator(**keywords)
        made.append(float(variable))
        return variable

    scope = functools.partial(tf.variable_creator_scope, noted)
    cluster = types.SimpleNamespace(scope=scope, strategy=tf.distribute.get_strategy())
    with model_methods.distribute_methods(cluster, None):
        tf.Variable(1.0)
        keras.utils.clear_session()
        tf.Variable(2.0)
    tf.Variable(3.0)
    assert made == [1.0, 2.0]


def test_calls_of_fit_after_a_global_seed_have_the_seeds_that_followed_it_first():
    seeds, given = model_methods.FitSeeds(), []
    found = [seeds.take()]
    for seed in (5, 5, 6, 5):
        seeds.set_global(given.append, seed)
        found += [seeds.take(), seeds.take()]
    assert found == [0, 1, 2, 1, 2, 3, 4, 1, 2] and given == [5, 5, 6, 5]
