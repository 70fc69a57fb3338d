"""Which losses and metrics of Keras may be computed shard by shard: those whose shards add up to the whole batch."""

import contextlib
from typing import Any

import keras

# Means over examples. tests/unit/keras_fit/test_per_example.py compares shards with the whole for all of keras.losses.
_LOSSES = (
    *("BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy"),
    *("CategoricalGeneralizedCrossEntropy", "CategoricalHinge", "CosineSimilarity", "CTC", "Hinge", "Huber"),
    *("KLDivergence", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"),
    *("MeanSquaredLogarithmicError", "Poisson", "SparseCategoricalCrossentropy", "SquaredHinge"),
)
# Metrics whose state is a sum over examples. CosineSimilarity is left out: its config does not say over which axis.
_METRICS = (
    *("AUC", "Accuracy", "BinaryAccuracy", "BinaryCrossentropy", "BinaryIoU", "CategoricalAccuracy"),
    *("CategoricalCrossentropy", "CategoricalHinge", "ConcordanceCorrelation", "F1Score"),
    *("FBetaScore", "FalseNegatives", "FalsePositives", "Hinge", "IoU", "KLDivergence", "LogCoshError", "Mean"),
    *("MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanIoU", "MeanSquaredError", "MeanSquaredLogarithmicError"),
    *("OneHotIoU", "OneHotMeanIoU", "PearsonCorrelation", "Poisson", "Precision", "PrecisionAtRecall", "R2Score"),
    *("Recall", "RecallAtPrecision", "RootMeanSquaredError", "SensitivityAtSpecificity", "SparseCategoricalAccuracy"),
    *("SparseCategoricalCrossentropy", "SparseTopKCategoricalAccuracy", "SpecificityAtSensitivity", "SquaredHinge"),
    *("Sum", "TopKCategoricalAccuracy", "TrueNegatives", "TruePositives"),
)


def is_per_example(one: Any) -> bool:
    """Returns whether a loss is a mean, or the state of a metric a sum, over the values of single examples."""
    if isinstance(one, keras.Metric):
        known = type(one) in {getattr(keras.metrics, name, None) for name in _METRICS}
        return known and one.get_config().get("axis", -1) == -1
    classes = [getattr(keras.losses, name) for name in _LOSSES]
    if not isinstance(one, keras.Loss) or type(one).__name__ == "LossFunctionWrapper":  # A function as the loss.
        return getattr(one, "fn", one) in [cls().fn for cls in classes]
    return type(one) in classes and _is_of_last_axis(one)


def _is_of_last_axis(loss: keras.Loss) -> bool:
    """Returns whether the `axis` of a loss of Keras is the last one; another one may be that of the examples."""
    kinds = (keras.losses.CosineSimilarity, keras.losses.SparseCategoricalCrossentropy)  # Their configs have no axis.
    if isinstance(loss, kinds):
        targets = keras.ops.ones((2,) if isinstance(loss, kinds[1]) else (2, 3))
        with contextlib.suppress(ValueError):  # Targets of this axis have another shape.
            return loss.call(targets, keras.ops.ones((2, 3))).shape == (2,)
        return False
    return loss.get_config().get("axis", -1) == -1
