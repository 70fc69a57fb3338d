"""Sparse gradients of tables, such as an embedding's, which have a row per lookup.

Decides which gradients stay sparse, and sums rows; gathered_rows.py gathers the rows of all replicas on each of them.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

Gradient = tf.Tensor | tf.IndexedSlices
# One per variable; None for a variable without a gradient.
Gradients = list[Gradient | None]
# These ops depend on their inputs' shapes only.
_OF_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
_UNIQUE = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}


def select(
    gradients: Sequence[Gradient | None],
    variables: Sequence[keras.Variable],
    shard: Any,
    optimizer: keras.optimizers.Optimizer,
) -> Gradients:
    """Makes a replica's sparse gradient dense if a single device would also sum its rows.

    These are the gradients
        of a variable whose attribute `dense_gradient`, which a layer sets, is True;
        of lookups that do not depend on the examples, such as those of positions: one device makes one lookup for all
        examples, and its row is the sum over them;
        of lookups that `tf.unique` makes once for all examples, as for a sparse input, for the same reason;
        of all variables, if the optimizer accumulates gradients or divides them by a loss scale, which needs tensors.

    Args:
        gradients: of one replica's shard; None for a variable without a gradient.
        shard: the nested tensors of the shard, in the graph in which the gradients were computed.
    """
    needs_tensors = any(
        getattr(optimizer, name, None) is not None for name in ("gradient_accumulation_steps", "loss_scale_factor")
    )

    def choose(gradient: Gradient | None, variable: keras.Variable) -> Gradient | None:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        summed = needs_tensors or getattr(variable, "dense_gradient", False)
        if summed or not _depends_on_examples(gradient.indices, shard):
            dense = tf.convert_to_tensor(gradient)
            dense.set_shape(variable.shape)  # TensorFlow packs only gradients of known shapes into one collective.
            return dense
        values = tf.ensure_shape(gradient.values, [None, *variable.shape[1:]])
        return tf.IndexedSlices(values, tf.cast(gradient.indices, tf.int64), tf.constant(list(variable.shape)))

    return [choose(*pair) for pair in zip(gradients, variables, strict=True)]


def _depends_on_examples(indices: tf.Tensor, shard: Any) -> bool:
    """Returns whether each example makes its own lookups: `indices` depend on `shard`, and not through `tf.unique`."""
    if tf.executing_eagerly():
        return True
    starts = {one.ref() for one in tf.nest.flatten(shard, expand_composites=True) if one is not None}
    seen: set[str] = set()
    waiting, used = [indices], False
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in starts:
            used = True
        elif tensor.op.name not in seen and tensor.op.type not in _OF_SHAPES:
            if tensor.op.type in _UNIQUE:
                return False
            seen.add(tensor.op.name)
            waiting += tensor.op.inputs
    return used


def values(gradient: Gradient) -> tf.Tensor:
    """Returns a gradient's numbers: the tensor, or the rows [lookups, ...] of a sparse one."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def as_dtype(factor: tf.Tensor | float, dtype: tf.DType) -> tf.Tensor:
    """Returns a factor in a gradient's dtype; `tf.cast` alone would round a Python number to float32."""
    exact = dtype == tf.float64 and not tf.is_tensor(factor)
    return tf.constant(factor, dtype) if exact else tf.cast(factor, dtype)


def sum_rows(gradient: Gradient) -> tf.Tensor:
    """Returns a gradient as a tensor, each row the sum over its lookups.

    The order of additions is fixed. `tf.convert_to_tensor` has no fixed order on GPUs, so replicas would differ.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices, stable=True)
    rows = tf.gather(gradient.indices, order)
    return tf.sparse.segment_sum(gradient.values, order, rows, num_segments=gradient.dense_shape[0])


# One element per replica that traces an update. Shared by all threads: a merge call is traced in another thread.
_updating: list[None] = []


@contextlib.contextmanager
def convert_in_fixed_order() -> Iterator[None]:
    """In the block, TensorFlow converts sparse gradients to tensors by `sum_rows`, for the formulas of Keras."""
    _updating.append(None)
    try:
        yield
    finally:
        _updating.pop()


def _convert(gradient: tf.IndexedSlices, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    return sum_rows(gradient) if _updating else NotImplemented


tf.register_tensor_conversion_function(tf.IndexedSlices, _convert, priority=99)
