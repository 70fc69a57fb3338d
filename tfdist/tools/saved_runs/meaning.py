"""What the outputs of a model mean: classes, probabilities, a confusion matrix. Pure functions of NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Sums of probabilities may differ from 1 by the rounding of float16.
_TOLERANCE = 5e-3


def probabilities(outputs: np.ndarray, *, logits: bool = False) -> np.ndarray:
    """Returns the probability of each class, float64 [n, classes], from the outputs of a classifier.

    They are [n, classes], or [n, 1] of the second of two classes. Those within 0 and 1 are probabilities, unless they
    are known to be `logits`.
    """
    outputs = outputs.astype(np.float64)
    within = bool((outputs >= 0).all() and (outputs <= 1).all()) and not logits
    if outputs.shape[1] == 1:
        second = outputs if within else 1 / (1 + np.exp(-outputs))
        return np.concatenate([1 - second, second], axis=1)
    if within and np.allclose(outputs.sum(1), 1, atol=_TOLERANCE):
        return outputs
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def class_names(known: Sequence[str], count: int) -> list[str]:
    """Returns the names of `count` classes: the known ones, or else their numbers."""
    return list(known) if len(known) == count else [str(number) for number in range(count)]


def confusion(labels: np.ndarray, answers: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [count, count]: row i has the examples of class i by the class that the model chose."""
    return np.bincount(labels * count + answers, minlength=count * count).reshape(count, count)


def per_class(matrix: np.ndarray, names: Sequence[str]) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Returns header and rows of a table with a line for each class; shares are None where nothing can be counted."""
    header = ("class", "examples", "right", "recall", "precision", "most often taken for")
    rows = []
    for number, name in enumerate(names):
        total, right, chosen = int(matrix[number].sum()), int(matrix[number, number]), int(matrix[:, number].sum())
        wrong = matrix[number].copy()
        wrong[number] = 0
        other = int(wrong.argmax())
        taken = f"{names[other]} ({wrong[other]})" if wrong[other] else "-"
        rows.append([name, total, right, right / total if total else None, right / chosen if chosen else None, taken])
    return header, rows


def most_wrong(probability: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the wrongly classified examples, at most `count`, in ascending order of their label's probability."""
    wrong = np.flatnonzero(probability.argmax(1) != labels)
    return wrong[np.argsort(probability[wrong, labels[wrong]], kind="stable")][:count]
