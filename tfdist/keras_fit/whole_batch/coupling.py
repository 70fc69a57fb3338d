"""Warns once where a user's step, layer or metric gives other numbers on shards of a batch than on the whole batch."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import user_code
from tfdist.keras_fit import messages
from tfdist.keras_fit.whole_batch import reductions
from tfdist.keras_fit.whole_batch.rows import Rows

# Operations that make one number of many.
_REDUCTIONS = {"Mean", "Sum", "L2Loss", "Max", "Min", "Prod"}
# Those that give a row for each row of one input, and those whose last input says in which order rows are returned.
_OF_ROWS = {"Add", "AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "SquaredDifference", "GatherV2"}
_ORDERS = {"ReverseV2", "Roll", "StridedSlice"}
_PRODUCTS = {"MatMul", "BatchMatMulV2", "Einsum"}


def warn_of_step(targets: list[tf.Tensor], rows: Rows) -> None:
    """Warns once where a step reduces or compares examples by itself, not by one of the loss objects.

    Args:
        targets: of a gradient of variables.
        rows: those of the replica that is traced.
    """
    if tf.executing_eagerly() or not replicas_lib.is_first():
        return
    losses = {one.op for one in rows.losses if isinstance(one, tf.Tensor)}
    mixing = next((op for op in reductions.before(targets, set()) if _mixes_examples(op, rows)), None)
    if mixing is not None:
        _say(
            mixing,
            "a step computes rows of several examples, such as with their mean, their number or their reversed order, "
            "and each replica has its own examples only: gather them by tfdist.all_gather, or compute it in a "
            "keras.losses.Loss, which sees the whole batch (docs/own_step.md)",
        )
    reduced = None
    for op in reductions.before(targets, losses):
        if op.type in _PRODUCTS and _compares(op, rows):
            _say(
                op,
                "a loss compares the examples of a batch, and each replica compares its own only: compute it in a "
                "keras.losses.Loss, which sees the whole batch, or gather them by tfdist.all_gather (docs/own_step.md)",
            )
            return
        makes_number = op.type in _REDUCTIONS and op.outputs[0].shape.rank == 0
        if reduced is None and makes_number and reductions.depends_on_data(op, rows):
            reduced = op
    call = _reducing_call([term for one in targets for _, term in reductions.terms_of(one, rows)], losses, rows)
    if call is not None:
        _say(
            call,
            "a loss is a number that a tf.cond, a loop, a map or a function of its own in the graph has computed. It "
            "is taken for a mean over the examples of each replica. If it is a sum or another number, return the "
            "values of the examples from there, and reduce them in train_step itself (docs/own_step.md)",
        )
    elif reduced is not None:
        _say(
            reduced,
            "a loss is reduced to a number without a loss object. Each replica reduces its own examples, which is "
            "right for a mean or a sum over examples. If it is another one, compute it in a keras.losses.Loss, which "
            "sees the whole batch (docs/own_step.md)",
        )


def warn_of_layers(outputs: Any, rows: Rows) -> None:
    """Warns once where a model, layer or regularizer of the user's computes something of several examples.

    Args:
        outputs: nested; the predictions and the losses of `add_loss`.
    """
    if tf.executing_eagerly() or rows.replicas == 1 or not replicas_lib.is_first():
        return
    for op in reductions.before(tf.nest.flatten(outputs, expand_composites=True), set()):
        if _mixes_examples(op, rows) or (op.type in _PRODUCTS and _compares(op, rows) and _is_of_user(op)):
            _say(
                op,
                "a layer computes rows of several examples, such as with their mean, or compares them, and each "
                "replica has its own examples only: several replicas give other numbers than one (docs/scripts.md)",
            )
            return


def warn_of_added_losses(losses: list[tf.Tensor], rows: Rows) -> None:
    """Warns once which losses of `add_loss` are those of each replica's examples."""
    for loss in losses:
        _warn_if_other(
            loss,
            rows,
            "a loss of add_loss is neither a mean nor a sum over examples. It is computed from the examples of each "
            "replica, and averaged: make the tensors that it is computed from outputs of the model, and compute it in "
            "a keras.losses.Loss, which sees the whole batch (docs/scripts.md)",
        )


def warn_of_metric(name: str, value: tf.Tensor, rows: Rows) -> None:
    """Warns once that a metric is updated with a number that is made of each replica's examples in another way."""
    _warn_if_other(
        value,
        rows,
        f"the metric {name!r} gets a number that is neither a mean nor a sum over examples. It is computed from the "
        "examples of each replica, and averaged: pass the values of the examples to a metric in compile, which sees "
        "the whole batch (docs/scripts.md)",
    )


def _warn_if_other(value: tf.Tensor, rows: Rows, text: str) -> None:
    if tf.executing_eagerly() or rows.replicas == 1 or not replicas_lib.is_first():
        return
    if any(reductions.kind_of(term, rows) == "other" for _, term in reductions.terms_of(value, rows)):
        _say(value.op, text)


def _reducing_call(terms: list[tf.Tensor], losses: set[tf.Operation], rows: Rows) -> tf.Operation | None:
    """Returns an operation that calls a function, which has made one of `terms` of the examples, or None."""
    waiting, seen = [one for one in terms if reductions.kind_of(one, rows) == "other"], set()
    while waiting:
        value = waiting.pop()
        op, calls = value.op, value.op.type in reductions.CALLS
        if op in seen or op in losses or value.dtype == tf.resource or not reductions.depends_on_data(op, rows):
            continue
        if reductions.has_rows(value, rows) and not (calls and value.shape.rank is None):
            continue
        if calls:
            return op
        seen.add(op)
        waiting += reductions.inputs_of(value)
    return None


def _mixes_examples(op: tf.Operation, rows: Rows) -> bool:
    """Returns whether a step makes rows of several examples of the replica, not by a layer of Keras.

    All pairs of rows, or each row with a number of all of them, such as their mean; or rows in reversed order.
    """
    if not op.outputs or not reductions.has_rows(op.outputs[0], rows) or not op.outputs[0].dtype.is_floating:
        return False
    mixed = []
    if op.type in _ORDERS:
        order = np.ravel(tf.get_static_value(op.inputs[-1]))
        if order[0] == -1 if op.type == "StridedSlice" else 0 in order:
            mixed = [op.inputs[0]]
    elif op.type in _OF_ROWS or (op.type == "MatMul" and not op.get_attr("transpose_a") and not _compares(op, rows)):
        mixed = [
            one for one in op.inputs if not reductions.has_rows(one, rows) or (one.shape.rank and one.shape[0] == 1)
        ]
    if "gradient_tape" in op.name or not any(_made_of_examples(one, rows) for one in mixed):
        return False
    return _is_of_user(op)


def _is_of_user(op: tf.Operation) -> bool:
    """Returns whether the user's code calls an operation, and not a layer of Keras."""
    for frame in reversed(op.traceback):
        if user_code.is_users(frame.filename) or "/layers/" in frame.filename:
            return "/layers/" not in frame.filename
    return False


def _made_of_examples(value: tf.Tensor, rows: Rows) -> bool:
    """As `depends_on_data`, where the numbers of examples do not count."""
    counts, equal = {id(one) for one in (rows.low, rows.count, rows.total)}, reductions.SHAPES | reductions.CONSTANT
    waiting, seen = [value], set()
    while waiting:
        one = waiting.pop()
        op = one.op
        if id(one) in counts or one.dtype == tf.resource or op in rows.equal or op.type in equal:
            continue
        if id(one) in seen or not reductions.depends_on_data(op, rows):
            continue
        seen.add(id(one))
        values = [each for each in reductions.inputs_of(one) if each.dtype != tf.resource]
        if not values:
            return not reductions.draws(op)
        waiting += values
    return False


def _compares(op: tf.Operation, rows: Rows) -> bool:
    """Returns whether a product has a value for each pair of examples."""
    shape = op.outputs[0].shape
    if (
        shape.rank != 2
        or shape[0] != shape[1]
        or not all(reductions.depends_on_data(one.op, rows) for one in op.inputs)
    ):
        return False
    # In a product of matrices, both dimensions may be of rows: several of each example, such as points in space.
    several = (rows.static or 0) > 1 and shape[0] is not None and shape[0] % rows.static == 0
    if op.type == "Einsum" or not several:
        return shape[0] in (None, rows.static) and all(reductions.has_rows(one, rows) for one in op.inputs)
    return not reductions.sums_rows(op, rows)


def _say(op: tf.Operation, text: str) -> None:
    line = user_code.current_line(op.traceback)
    messages.say_once(f"{line}: {text}.", key=f"reductions {line}")
