"""Checks prepared training examples before the first step, and warns of likely mistakes.

Runs only on the chief of a new run; results do not depend on it.
"""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.feed import Batch
from tfdist.report.reporter import Reporter
from tfdist.training import pruned
from tfdist.training.run import Run
from tfdist.training.step.objective import Objective

# Number of examples that are checked; they should contain each class, if there are at most `_FEW_CLASSES` classes.
_EXAMPLES, _FEW_CLASSES = 64, 16
# How many of the first layers are searched for a Rescaling, and the largest scale that is meant for bytes.
_FIRST_LAYERS, _FOR_BYTES = 4, 1 / 100
# Values up to this magnitude have already been divided by 255, and perhaps normalised.
_SCALED = 4.0
# The sizes of the two batches in which the first example is compared, and the least difference that is reported.
_FEW, _MORE, _COUPLED = 2, 4, 1e-2


def report(run: Run, reporter: Reporter) -> None:
    """Writes the range of a prepared batch to the log, and warnings."""
    if run.feed.first_batch is None:
        return
    try:
        batch = {name: value.numpy() for name, value in run.feed.first_batch(_EXAMPLES).items()}
    except Exception:  # Training reads the same examples: its error names the one that cannot be read.
        return
    ranges = [
        f"{name} {value.dtype} {value.min():.4g} to {value.max():.4g}"
        for name, value in batch.items()
        if value.dtype.kind in "iufb" and value.size
    ]
    if ranges:
        reporter.event(f"the first {len(next(iter(batch.values())))} prepared examples have {', '.join(ranges)}")
    objective, prepare = run.config.objective, run.config.data.prepare
    inputs, labels = (batch.get(objective.get(key, usual)) for key, usual in (("inputs", "image"), ("labels", "label")))
    notes = [] if inputs is None else [*_scaled_twice(run.context.model, inputs, prepare)]
    outputs = getattr(run.context.model, "output_shape", None)
    if labels is not None and labels.dtype.kind in "iu" and labels.ndim == 1 and isinstance(outputs, tuple):
        notes += label_notes(labels, outputs)
    # Objectives of tfdist compute each example alone.
    if not str(objective["target"]).startswith("tfdist.") and len(next(iter(batch.values()))) >= _MORE:
        notes += coupled(run.context.objective, batch)
    for note in notes:
        reporter.warning(f"WARNING: {note}")


def coupled(objective: Objective, batch: Batch) -> Iterator[str]:
    """Yields a warning for each value of an example that depends on the other examples.

    One cause is subtracting tensors of shapes [n, 1] and [n], which gives [n, n]. Each replica computes its examples
    alone, so another number of replicas would give other values.
    """
    try:
        few, again, more = (_values_of_first(objective, batch, count) for count in (_FEW, _FEW, _MORE))
    except Exception:  # Training calls the objective, too: its error names the line.
        return
    for name in few:
        one, same, other = (values[name] for values in (few, again, more))
        # A value that differs between equal batches is drawn at random: it is not compared.
        if one == same and not math.isclose(one, other, rel_tol=_COUPLED, abs_tol=_COUPLED):
            yield (
                f"config.objective: {name!r} of an example depends on other examples: that of the first one is "
                f"{one:.6g} in a batch of {_FEW} and {other:.6g} in a batch of {_MORE}. Each replica computes its "
                "examples alone, so another number of replicas gives other results. Does it subtract "
                "tensors of shapes [n, 1] and [n]?"
            )


def _values_of_first(objective: Objective, batch: Batch, count: int) -> dict[str, float]:
    """Returns the values of the first of `count` examples by name; variables that the objective assigns do not change.

    This worker alone computes them, so it must not change anything.
    """
    names: list[str] = []

    def values(*given: tf.Tensor) -> list[tf.Tensor]:
        with keras.StatelessScope():
            found = objective.function(objective.model, dict(zip(batch, given, strict=True)), training=False)
        names[:] = found
        return [tf.cast(value[0], tf.float32) for value in found.values()]

    tensors = [tf.constant(value[:count]) for value in batch.values()]
    computed = pruned.compute(values, tensors)
    return {name: float(value) for name, value in zip(names, computed, strict=True)}


def _scaled_twice(model: keras.Model, inputs: np.ndarray, prepare: dict[str, Any]) -> Iterator[str]:
    layers = [layer for layer in _layers(model) if isinstance(layer, keras.layers.Rescaling)]
    for layer in layers:
        scale = np.max(np.abs(np.asarray(layer.scale, np.float64)))
        if scale <= _FOR_BYTES and inputs.dtype.kind == "f" and np.abs(inputs).max() <= _SCALED:
            advice = "--config.data.prepare.scale=1" if prepare["target"].endswith(":image") else "config.data.prepare"
            yield (
                f"values are scaled twice: config.data.prepare returns {inputs.min():.4g} to {inputs.max():.4g}, and "
                f"the model's layer {layer.name!r} multiplies by {scale:.4g}. Remove the layer, or change {advice}."
            )


def _layers(model: keras.Model) -> list[keras.layers.Layer]:
    found: list[keras.layers.Layer] = []
    for layer in model.layers[:_FIRST_LAYERS]:
        found += _layers(layer) if isinstance(layer, keras.Model) else [layer]
    return found[:_FIRST_LAYERS]


def label_notes(labels: np.ndarray, outputs: tuple[int | None, ...]) -> Iterator[str]:
    """Yields probable mistakes in `labels`, integers [n], for a model with outputs of this shape."""
    low, high, count = int(labels.min()), int(labels.max()), outputs[-1]
    if len(labels) >= _EXAMPLES / 2 and low == high:
        yield (
            f"the labels of the first {len(labels)} training examples are all {low}: check config.data.train_split and "
            "config.data.source, and that the examples are not sorted by class."
        )
    if len(outputs) != 2 or count is None or count < 2:
        return
    if high >= count:
        begin = "Labels must begin at 0: subtract 1 in config.data.prepare. Or set"
        begin = begin if low >= 1 and high == count else "Set"
        yield (
            f"there is a label {high}, and the model has {count} outputs, for labels 0 to {count - 1}. {begin} "
            f"config.model.num_classes (or your model's name for it) to {high + 1}."
        )
    elif low == 1 < high == count - 1 and count <= _FEW_CLASSES and len(labels) == _EXAMPLES:
        yield (
            f"no label of the first {len(labels)} training examples is 0, and {count} outputs are for labels 0 to "
            f"{count - 1}: if labels begin at 1, subtract 1 in config.data.prepare and set config.model.num_classes "
            f"to {count - 1}."
        )
