"""Activity regularizers are refused where the penalty would depend on the number of replicas."""

import keras
import pytest

from tfdist.training.step.layers import normalization

SUMS = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14)


def model(regularizer):
    layer = keras.layers.Dense(3, activity_regularizer=regularizer, name="penalised")
    return keras.Sequential([keras.Input((4,)), keras.Sequential([layer])])


def test_keras_sums_a_penalty_over_the_batch_before_3_14():
    made = model("l1")
    losses = []
    for size in (1, 4):
        made(keras.ops.ones([size, 4]))
        losses.append(float(keras.ops.sum(made.losses)))
    assert losses[1] == pytest.approx(losses[0] * (4 if SUMS else 1))


@pytest.mark.parametrize("version", ["3.12.4", "3.13.0", "3.14.0", "3.15.1", "4.0.0"])
def test_a_sum_is_refused_on_several_replicas(version, monkeypatch):
    monkeypatch.setattr(keras, "__version__", version)
    normalization.check_penalties(model("l1"), 1)
    normalization.check_penalties(model(None), 2)
    if version < "3.14":
        with pytest.raises(ValueError, match="Layer 'penalised' has an activity_regularizer"):
            normalization.check_penalties(model("l1"), 2)
    else:
        normalization.check_penalties(model("l1"), 2)
