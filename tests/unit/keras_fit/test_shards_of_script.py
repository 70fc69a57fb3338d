"""What virtual replicas refuse in a script, with the reason."""

import keras
import pytest

import tfdist
from tfdist.keras_fit.run_parts import virtual_replicas


class OwnStep(keras.Sequential):
    """A model with a step of its own."""

    def train_step(self, data):
        return {}


class OwnMetrics(keras.Sequential):
    """A model with metrics of its own."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {}


def largest_error(y_true, y_pred):
    """A loss that is no mean over examples."""
    return keras.ops.max(keras.ops.abs(y_true - y_pred))


def compiled(kind=keras.Sequential, layers=(), loss="mse", **options):
    """A small model."""
    model = kind([keras.Input((4, 3), batch_size=8), *layers, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", loss, **{"jit_compile": False} | options)
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": OwnStep}, "OwnStep has its own train_step"),
        ({"kind": OwnMetrics}, "OwnMetrics has its own compute_metrics"),
        ({"jit_compile": True}, "jit_compile"),
        ({"run_eagerly": True}, "run_eagerly"),
        ({"layers": [keras.layers.LSTM(2, stateful=True, name="memory")]}, "the layer 'memory' is stateful"),
        ({"loss": largest_error}, "the loss 'largest_error' is computed on the whole batch"),
        ({"loss": keras.losses.Dice(name="dice")}, "the loss 'dice' is computed on the whole batch"),
        (
            {"loss": keras.losses.MeanSquaredError("mean_with_sample_weight", name="mse")},
            "the loss 'mse' is divided by the weights of the whole batch",
        ),
    ],
)
def test_models_that_see_more_than_a_shard_are_refused(model, message):
    assert any(message in one for one in virtual_replicas._problems(compiled(**model)))


def test_usual_models_and_declared_losses_are_not_refused():
    for loss in (
        "mse",
        keras.losses.Huber(),
        tfdist.per_example(lambda y_true, y_pred: keras.ops.abs(y_true - y_pred)),
    ):
        assert list(virtual_replicas._problems(compiled(layers=[keras.layers.LSTM(2)], loss=loss))) == []


def test_metrics_of_the_whole_batch_and_of_too_many_numbers_are_refused():
    model = compiled(metrics=["mae", largest_error])
    model.compute_metrics(None, keras.ops.zeros((8, 2)), keras.ops.zeros((8, 2)))
    with pytest.raises(ValueError, match="the metric 'largest_error' is computed on the whole batch"):
        virtual_replicas._check_metrics(8, model)
    model = compiled(metrics=[keras.metrics.MeanIoU(200)])
    model.compute_metrics(None, keras.ops.zeros((8, 2)), keras.ops.zeros((8, 2)))
    with pytest.raises(ValueError, match="40,000 numbers"):
        virtual_replicas._check_metrics(8, model)
