"""What `python -m tfdist.run` replaces in Keras' models."""

import functools
import types

import keras
import tensorflow as tf

from tfdist.config.patching import patch
from tfdist.keras_fit.script import model_methods


def test_auto_means_no_xla_on_machines_with_gpus(monkeypatch):
    devices = [types.SimpleNamespace(device_type="GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)

    class Own(keras.Model):
        def compile(self, **keywords):
            super().compile("sgd", **keywords)

    def compiled(**keywords):
        model = Own()
        model.compile(**keywords)
        return model.jit_compile

    assert compiled()
    with patch(keras.Model, "compile", model_methods.compile_without_xla):
        assert (compiled(), compiled(jit_compile=True)) == (False, True)
    assert compiled()


def test_variables_are_replicated_after_clear_session():
    made = []
    cluster = types.SimpleNamespace(scope=functools.partial(tf.variable_creator_scope, _noted(made)))
    with model_methods.distribute_methods(cluster, None):
        tf.Variable(1.0)
        keras.utils.clear_session()
        tf.Variable(2.0)
    assert made == [1.0, 2.0]
    tf.Variable(3.0)
    assert made == [1.0, 2.0]


def _noted(made):
    def create(next_creator, **keywords):
        variable = next_creator(**keywords)
        made.append(float(variable))
        return variable

    return create
