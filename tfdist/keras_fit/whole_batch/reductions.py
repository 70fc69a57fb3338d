"""How a number that a step computes is made of its examples: a mean over them, a sum, or something else.

On one device the step sees the global batch. A mean over it is the mean of the replicas' means, weighted by their
examples; a sum over it is the sum of their sums. The operations that make the number tell which of them it is.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_fit.whole_batch.rows import Rows

# Operations of a shape; without an input that depends on the examples; and linear ones.
SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
CONSTANT = {"Const", "ReadVariableOp", "VarHandleOp"}
_LINEAR = {
    *("Identity", "IdentityN", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "EnsureShape", "CheckNumerics"),
    *("Add", "AddV2", "AddN", "Sub", "Pack", "StopGradient", "PreventGradient"),
}
_SUMS = ("Add", "AddV2", "AddN")
_QUOTIENTS = {"RealDiv", "Div", "DivNoNan"}
# Operations that call a function, into which nothing here looks.
CALLS = {
    *("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "PartitionedCall"),
    *("StatefulPartitionedCall", "PyFunc", "PyFuncStateless", "EagerPyFunc"),
}
# Those whose second input is a layer's weights.
_OF_WEIGHTS = {"MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "BiasAdd"}


def kind_of(value: tf.Tensor, rows: Rows, *, whole: bool = False) -> str:
    """Returns what a tensor of a step is made of.

    Args:
        whole: that the value has no rows, whatever its shape: it is for a variable.

    Returns:
        "equal": the same on all replicas. "rows": one value or row per example. "mean" or "sum": over the examples.
        "other": something that cannot be told. In a step that runs eagerly, where operations are not known, "mean".
    """
    if tf.executing_eagerly() or not isinstance(value, tf.Tensor):
        return "mean"
    op, inputs = value.op, inputs_of(value)
    if not depends_on_data(op, rows):
        return "equal"
    if op in {one.op for one in rows.losses if isinstance(one, tf.Tensor)}:
        return "rows" if value.shape.rank else "mean"
    if op.type in _LINEAR and (whole or all(one.shape.rank == 0 for one in inputs)):
        return _of_terms(inputs, rows, whole)
    if not whole and has_rows(value, rows):
        return "rows"
    if op.type in ("Mean", "Sum", "L2Loss"):
        kind = kind_of(inputs[0], rows, whole=whole and not _reduces_rows(op))
        return ("mean" if op.type == "Mean" else "sum") if kind == "rows" else kind
    if op.type in _LINEAR:
        return _of_terms(inputs, rows, whole)
    if op.type == "MatMul":
        return "sum" if sums_rows(op, rows) else "other"
    scaled = _split_scale(op, rows)
    if scaled is None:
        return "other"
    term, factor = scaled
    kind, change = kind_of(term, rows, whole=whole), {"mean": "sum"} if op.type == "Mul" else {"sum": "mean"}
    return change.get(kind, kind) if _counts(term, factor, rows) else kind


def terms_of(value: tf.Tensor, rows: Rows, *, whole: bool = False) -> list[tuple[Any, tf.Tensor]]:
    """Returns the terms of a value of several kinds, each with its factor, which is equal on all replicas.

    The value is the sum of their products. A value of one kind, or that cannot be divided, is the only term.
    """
    if kind_of(value, rows, whole=whole) != "other":
        return [(1.0, value)]
    op, inputs = value.op, inputs_of(value)
    if value.shape.rank == 0 and any(one.shape.rank != 0 for one in inputs):
        return [(1.0, value)]
    signs = {"Identity": [1.0], "Neg": [-1.0], "Sub": [1.0, -1.0]} | dict.fromkeys(_SUMS, [1.0] * len(inputs))
    parts = list(zip(signs.get(op.type, ()), inputs, strict=False))
    scaled = _split_scale(op, rows)
    if scaled is not None and not depends_on_data(scaled[1].op, rows, by_shape=True):
        parts = [(scaled[1] if op.type == "Mul" else 1.0 / scaled[1], scaled[0])]
    found = [(factor * inner, term) for factor, one in parts for inner, term in terms_of(one, rows, whole=whole)]
    return found or [(1.0, value)]


def share(value: tf.Tensor, rows: Rows, *, whole: bool = False) -> tf.Tensor:
    """Returns the factor of a value whose mean over the replicas, weighted by examples, is that of one device.

    Returns:
        float64 []: 1, or the inverse of the weight for a sum over examples and for a value per example.
    """
    is_sum = kind_of(value, rows, whole=whole) in ("sum", "rows")
    return tf.math.divide_no_nan(1.0, rows.weight) if is_sum else tf.ones([], tf.float64)


def share_value(value: tf.Tensor, rows: Rows, *, whole: bool = False) -> tf.Tensor:
    """Returns a tensor whose mean over the replicas, weighted by examples, is `value` on one device."""
    terms = [] if rows.replicas == 1 else terms_of(value, rows, whole=whole)
    if not any(kind_of(term, rows, whole=whole) in ("sum", "rows") for _, term in terms):
        return value
    return sum(factor * term * tf.cast(share(term, rows, whole=whole), term.dtype) for factor, term in terms)


def inputs_of(value: tf.Tensor) -> list[tf.Tensor]:
    """Returns what a tensor is computed of: of a `tf.custom_gradient`, the one that it is equal to."""
    inputs = list(value.op.inputs)
    return [inputs[value.value_index]] if value.op.type == "IdentityN" else inputs


def _reduces_rows(op: tf.Operation) -> bool:
    """Returns whether a mean or sum is taken over the first dimension."""
    axes = tf.get_static_value(op.inputs[1]) if len(op.inputs) > 1 else 0
    rank = op.inputs[0].shape.rank or 1
    return axes is None or 0 in {int(axis) % rank for axis in np.ravel(axes)}


def _of_terms(inputs: list[tf.Tensor], rows: Rows, whole: bool) -> str:
    found = {kind_of(one, rows, whole=whole) for one in inputs}
    if found <= {"mean", "equal"}:
        return "mean"
    return found.pop() if found == {"sum"} else "other"


def _split_scale(op: tf.Operation, rows: Rows) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns the operand of a product or quotient that depends on the examples, and the other one; None: both do."""
    inputs = list(op.inputs)
    if op.type == "Mul":
        inputs.sort(key=lambda one: not depends_on_data(one.op, rows))
    elif op.type not in _QUOTIENTS:
        return None
    return None if depends_on_data(inputs[1].op, rows) else (inputs[0], inputs[1])


def sums_rows(op: tf.Operation, rows: Rows) -> bool:
    """Returns whether a product of matrices sums over the examples."""
    one, other = op.inputs
    left = one.shape[0] if op.get_attr("transpose_a") else one.shape[1]
    right = other.shape[1] if op.get_attr("transpose_b") else other.shape[0]
    both = all(depends_on_data(each.op, rows) for each in op.inputs)
    return both and left == right and left in (None, rows.static)


def _counts(value: tf.Tensor, factor: tf.Tensor, rows: Rows) -> bool:
    """Returns whether a factor is the number of a replica's examples, or of their values."""
    if depends_on_data(factor.op, rows, by_shape=True):
        return True
    number, op = tf.get_static_value(factor), value.op
    while op.type in _LINEAR or _split_scale(op, rows) is not None:
        op = op.inputs[0].op if op.type in _LINEAR else _split_scale(op, rows)[0].op
    if number is None or getattr(number, "size", 0) != 1 or op.type != "Sum":
        return False
    summed = op.inputs[0].shape
    if rows.static and float(number) == rows.static * rows.replicas and not is_of_a_shape(factor):
        return False  # The size of the global batch, which the values of a shard may equal.
    return float(number) in (float(summed[0] or 0) if summed.rank else 0.0, float(summed.num_elements() or 0))


def is_of_a_shape(factor: tf.Tensor) -> bool:
    """Returns whether a constant comes from a shape: TensorFlow names the constant of a static size after the call."""
    ops = list(before([factor], set()))
    names = {op.name.rpartition("/")[2].partition("_")[0] for op in ops}
    return not names.isdisjoint(SHAPES) and all(op.inputs or op.type == "Const" for op in ops)


def has_rows(value: tf.Tensor, rows: Rows) -> bool:
    """Returns whether a tensor may have one row per example of the replica."""
    rank = value.shape.rank
    return rank is None or (rank > 0 and value.shape[0] in (None, rows.static))


def depends_on_data(op: tf.Operation, rows: Rows, *, by_shape: bool = False) -> bool:
    """Returns whether an operation has another result on another replica: it depends on the examples, or draws.

    Args:
        rows: remembers the answers of this trace.
        by_shape: whether the number of examples counts as well.
    """
    known = rows.dependent.setdefault(by_shape, {})
    waiting, seen = [op], set()
    while waiting:
        one = waiting.pop()
        if one in seen or known.get(one) is False or one.type in CONSTANT or one in rows.equal:
            continue
        if one.type in SHAPES and not by_shape:
            continue
        seen.add(one)
        values = [each for each in one.inputs if each.dtype != tf.resource]
        # An input of the step, an element of an iterator, or random numbers.
        given = not values and one.outputs and one.outputs[0].dtype not in (tf.resource, tf.variant)
        if known.get(one) or given or draws(one):
            known[op] = True
            return True
        waiting += [each.op for each in values]
    known.update(dict.fromkeys(seen, False))
    return False


def draws(op: tf.Operation) -> bool:
    """Returns whether an operation draws other numbers on another replica: not with a seed of the user's own."""
    if not op.type.startswith("StatelessRandom"):
        return "Random" in op.type
    # The seeds of a step, which contain the number of the replica, are computed by a function.
    return op.type == "StatelessRandomGetKeyCounter" and any(one.type in CALLS for one in before(op.inputs, set()))


def is_of_examples(value: tf.Tensor, rows: Rows) -> bool:
    """Returns whether the source of a gradient is made of a replica's examples, or has constant rows beside them.

    Such as zeros that are added to the examples, which an attack changes by their gradient. A constant that is added to
    weights is equal on all replicas: the examples meet it as the other factor of a product, or in fewer dimensions.
    """
    if depends_on_data(value.op, rows):
        return True
    if rows.static is None and depends_on_data(value.op, rows, by_shape=True):
        return True
    if not has_rows(value, rows) or any(op.type == "ReadVariableOp" for op in before([value], set())):
        return False
    waiting, seen, met = [value], set(), False
    while waiting:
        one = waiting.pop()
        for op in set(one.consumers()) - seen:
            seen.add(op)
            if op.type in SHAPES:
                continue
            if not depends_on_data(op, rows):
                waiting += [each for each in op.outputs if has_rows(each, rows)]
                continue
            met, ranks = True, [each.shape.rank or 0 for each in op.outputs]
            if (op.type in _OF_WEIGHTS and op.inputs[0] is not one) or max(ranks, default=0) > (one.shape.rank or 0):
                return False
    return met


def before(targets: list[tf.Tensor], ends: set[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields the operations that compute `targets`, back to those of `ends`, which are left out."""
    waiting, seen = [one.op for one in targets], set(ends)
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        yield op
        waiting += [one.op for one in op.inputs]
