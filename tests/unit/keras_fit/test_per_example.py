"""Which losses and metrics of Keras add up over shards: found by comparing shards with the whole."""

import inspect

import keras
import numpy as np
import pytest

from tfdist.keras_fit.whole_batch import per_example

RANDOM = np.random.default_rng(0)
CUT = 3
WEIGHTS = RANDOM.uniform(0.5, 2.0, 8).astype("float32")


def classes(module, base):
    found = {name: getattr(module, name) for name in dir(module) if inspect.isclass(getattr(module, name))}
    return {name: cls for name, cls in found.items() if cls is not base and name != "MeanMetricWrapper"}


LOSSES, METRICS = classes(keras.losses, keras.Loss), classes(keras.metrics, keras.Metric)
ARGUMENTS = {
    **dict.fromkeys(("SensitivityAtSpecificity", "SpecificityAtSensitivity"), (0.5,)),
    **dict.fromkeys(("PrecisionAtRecall", "RecallAtPrecision"), (0.5,)),
    **{"IoU": [3, [0, 2]], "OneHotIoU": [3, [0, 2]], "MeanIoU": [3], "OneHotMeanIoU": [3], "BinaryIoU": [[0, 1]]},
}


def examples(name):
    """Returns targets and predictions of eight examples, for a loss or metric."""
    probabilities = RANDOM.uniform(0.1, 1.0, (8, 3)).astype("float32")
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    classes = RANDOM.integers(0, 3, 8)
    if name == "CTC":
        return RANDOM.integers(1, 3, (8, 2)), RANDOM.normal(size=(8, 6, 3)).astype("float32")
    if name in ("Dice", "Tversky"):
        return RANDOM.integers(0, 2, (8, 3)).astype("float32"), RANDOM.uniform(size=(8, 3)).astype("float32")
    if name.startswith("SparseCategorical") or name in ("CategoricalGeneralizedCrossEntropy", "Circle"):
        return classes, probabilities
    if name == "SparseTopKCategoricalAccuracy":
        return classes, np.tile(probabilities, (1, 3))
    if name in ("IoU", "MeanIoU", "Accuracy"):
        return classes, RANDOM.integers(0, 3, 8)
    if name in ("R2Score", "PearsonCorrelation", "ConcordanceCorrelation", "BinaryIoU"):
        return RANDOM.uniform(size=(8, 3)).astype("float32"), probabilities
    return np.eye(3, dtype="float32")[classes], probabilities


def adds_up(whole, parts):
    return np.allclose(whole, parts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_gathered_unless_it_is_a_mean_over_examples(name):
    loss = LOSSES[name](reduction="sum_over_batch_size")
    true, predicted = examples(name)
    parts = [slice(0, CUT), slice(CUT, None)]
    same = []
    for weights in (None, WEIGHTS):
        of_parts = [loss(true[rows], predicted[rows], None if weights is None else weights[rows]) for rows in parts]
        mean = (CUT * of_parts[0] + (8 - CUT) * of_parts[1]) / 8
        same.append(adds_up(loss(true, predicted, weights), mean))
    # A loss with a `__call__` of its own reduces its values itself.
    assert per_example.is_per_example(loss) == (all(same) and type(loss).__call__ is keras.Loss.__call__)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_gathered_unless_its_state_is_a_sum_over_examples(name):
    if name in ("Mean", "Sum"):
        values = RANDOM.normal(size=8).astype("float32")
        updates = [(values[:CUT],), (values[CUT:],), (values,)]
    else:
        true, predicted = examples(name)
        updates = [(true[:CUT], predicted[:CUT]), (true[CUT:], predicted[CUT:]), (true, predicted)]
    made = [METRICS[name](*ARGUMENTS.get(name, [])) for _ in updates]
    for _ in range(2):  # A state that is not only a sum shows after the first batch.
        for metric, update in zip(made, updates, strict=True):
            metric.update_state(*update)
    first, second, whole = ([keras.ops.convert_to_numpy(variable) for variable in metric.variables] for metric in made)
    same = all(adds_up(c, a + b) for a, b, c in zip(first, second, whole, strict=True))
    same &= name != "CosineSimilarity"  # It does not say which its axis is.
    assert same == per_example.is_per_example(made[0])


def test_a_function_is_what_its_class_is_and_a_class_that_inherits_is_another_one():
    class Own(keras.losses.MeanSquaredError):
        def call(self, true, predicted):
            return keras.ops.max(predicted - true)

    for one, expected in (
        (keras.losses.mean_squared_error, True),
        (keras.losses.dice, False),
        (keras.metrics.MeanMetricWrapper(keras.losses.tversky), False),
        (lambda true, predicted: true - predicted, False),
        (Own(), False),
        # An axis may be that of the examples.
        (keras.losses.CosineSimilarity(axis=0), False),
        (keras.losses.SparseCategoricalCrossentropy(axis=0), False),
        (keras.losses.CategoricalCrossentropy(axis=0), False),
    ):
        assert per_example.is_per_example(one) == expected
