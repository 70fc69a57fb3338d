"""A run without callbacks has a CallbackRunner that does nothing, and never waits for other workers."""

import types

import keras
import numpy as np

from tfdist.training.features.callback_runner import CallbackRunner
from tfdist.training.hooks import Hooks


def test_a_run_without_callbacks_calls_nothing():
    runner = Hooks()
    runner.train_begin()
    for hook in ("on_train_begin", "on_epoch_begin", "on_test_batch_end", "on_predict_end"):
        runner.call(hook, 0, {"loss": 1.0})
    runner.progress(1, {})
    assert not runner.nonfinite_loss(0, float("nan")) and not runner.stopped_on_nan
    runner.train_end({})
    assert not runner.active and not runner.stop()
    assert runner.batch_interval == {} and not runner.ends_batch("train", 0, 1)
    assert not any(runner.wants_progress(kind) for kind in ("train", "test", "predict"))
    assert runner.state([]) == ({}, {})
    overridden = {name for name in vars(Hooks) if not name.startswith("_")} - vars(CallbackRunner).keys()
    assert overridden == {"stopped_by", "before_steps", "ends_batch", "after_steps", "ends", "steps_to_hook"}


def test_a_model_that_was_never_trained_is_not_stopped():
    cluster = types.SimpleNamespace(is_chief=True, num_workers=1, all_gather=lambda row: np.array([row]))

    runner = CallbackRunner(cluster, keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), callbacks=[])
    assert runner.active and not runner.stop() and isinstance(runner.history, keras.callbacks.History)
