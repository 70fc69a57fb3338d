"""Activity regularizers are refused where the penalty would depend on the number of replicas."""

import contextlib

import keras
import pytest

from tfdist.training.step.layers import normalization


def model(regularizer):
    layer = keras.layers.Dense(3, activity_regularizer=regularizer, name="penalised")
    return keras.Sequential([keras.Input((4,)), keras.Sequential([layer])])


@pytest.mark.parametrize(("version", "sums"), [("3.13.0", True), ("3.14.0", False), ("4.0.0", False)])
def test_a_sum_is_refused_on_several_replicas(version, sums, monkeypatch):
    """Keras sums a penalty over the batch before 3.14."""
    monkeypatch.setattr(keras, "__version__", version)
    normalization.check_penalties(model("l1"), 1)
    normalization.check_penalties(model(None), 2)
    refused = pytest.raises(ValueError, match="'penalised' has an activity_regularizer")
    with refused if sums else contextlib.nullcontext():
        normalization.check_penalties(model("l1"), 2)
