"""Evaluations and predictions again and again: nothing is made or traced that an earlier call has made."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import config as c
from tfdist.cluster import strategy

X, Y = np.float32(np.random.default_rng(0).normal(size=(21, 4))), np.arange(21) % 3
# An entry for each call of the layer by Python, that is, for each trace.
TRACED: list[int] = []


class Counting(keras.layers.Layer):
    """A layer that counts how often it is traced."""

    def call(self, inputs):
        TRACED.append(1)
        return inputs


@pytest.fixture(scope="module")
def made():
    """The cluster and a compiled model of one device."""
    cluster = strategy.connect(c.ClusterOptions())
    with cluster.scope():
        model = keras.Sequential([keras.Input((4,)), Counting(), keras.layers.Dense(3)])
    return cluster, model


def compile_model(cluster, model):
    with cluster.scope():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss, metrics=["accuracy"])


def traces(function):
    """How often the model is traced in a call; and what it returns."""
    before = len(TRACED)
    result = function()
    return len(TRACED) - before, result


@pytest.mark.slow
def test_an_evaluation_makes_no_slots_and_the_next_one_traces_nothing(made):
    cluster, model = made
    compile_model(cluster, model)
    first, values = traces(lambda: tfdist.evaluate(cluster, model, X, Y, batch_size=8, verbose=0))
    assert first > 0 and not model.optimizer.built
    np.testing.assert_allclose(values, model.evaluate(X, Y, batch_size=8, verbose=0), rtol=1e-5)
    # Other data, other weights.
    model.layers[-1].kernel.assign(-model.layers[-1].kernel)
    again, changed = traces(lambda: tfdist.evaluate(cluster, model, X[:15], Y[:15], batch_size=8, verbose=0))
    assert again == 0 and changed != values
    np.testing.assert_allclose(changed, model.evaluate(X[:15], Y[:15], batch_size=8, verbose=0), rtol=1e-5)
    compile_model(cluster, model)
    assert traces(lambda: tfdist.evaluate(cluster, model, X, Y, batch_size=8, verbose=0))[0] > 0
    first, outputs = traces(lambda: tfdist.predict(cluster, model, X, batch_size=8, verbose=0))
    again, same = traces(lambda: tfdist.predict(cluster, model, X, batch_size=8, verbose=0))
    assert first > 0 and again == 0
    np.testing.assert_array_equal(same, outputs)


@pytest.mark.slow
def test_trainings_and_predictions_of_many_models_are_not_warned_about(made, caplog, monkeypatch):
    cluster, _ = made
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    monkeypatch.setattr(tf.get_logger(), "level", logging.WARNING)
    for _ in range(6):  # TensorFlow warns at the fifth trace.
        with cluster.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        compile_model(cluster, model)
        tfdist.fit(cluster, model, X, Y, verbose=0)
        tfdist.predict(cluster, model, X, verbose=0)
    assert [record.message for record in caplog.records if "retracing" in record.message] == []


class Evaluating(keras.Sequential):
    """Has an evaluation of its own."""

    def evaluate(self, *args, **options):
        return super().evaluate(*args, **options) | {"more": 1.0}


@pytest.mark.slow
def test_fit_says_that_it_does_not_call_an_evaluation_of_the_models_own(made, capsys):
    cluster, _ = made
    with cluster.scope():
        model = Evaluating([keras.Input((4,)), keras.layers.Dense(3)])
    compile_model(cluster, model)
    tfdist.fit(cluster, model, X, Y, verbose=0)
    assert "evaluate" not in capsys.readouterr().err
    history = tfdist.fit(cluster, model, X, Y, validation_data=(X, Y), verbose=0).history
    assert "Evaluating has its own evaluate" in capsys.readouterr().err and "val_more" not in history


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError(epoch)


def test_the_stall_timer_stops_after_an_error_that_a_script_may_catch(made):
    cluster, model = made
    compile_model(cluster, model)
    with pytest.raises(KeyError):
        tfdist.fit(cluster, model, X, Y, verbose=0, callbacks=[Fails()])
    assert cluster.monitor.has_executed and cluster.monitor.last_execution is None
