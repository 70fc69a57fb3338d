"""Sparse gradients: the rows that lookups in a table, such as an embedding's, contribute to its gradient.

A table's row occurs once for each of its lookups. Keras' optimizers square the row of each lookup, and not their sum.
So all replicas apply the rows of the global batch's lookups, in the order of the replicas: each replica has consecutive
examples of the global batch, so this is the order of the global batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

Gradient = tf.Tensor | tf.IndexedSlices
# These ops depend on their inputs' shapes only.
_OF_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
_UNIQUE = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}


def select(
    gradients: Sequence[Gradient | None],
    variables: Sequence[keras.Variable],
    shard: Any,
    optimizer: keras.optimizers.Optimizer,
    *,
    num_replicas: int,
    most_examples: int | None = None,
) -> list[Gradient | None]:
    """Makes those sparse gradients of a replica dense that are not to be sent row by row.

    These are the gradients
        of a variable with an attribute `dense_gradient` that is True, which a layer sets;
        of lookups that do not depend on the examples, such as those of positions: on one device there is one lookup for
        all examples, and its row is the sum over them;
        of lookups that are made once for all examples by `tf.unique`, as for a sparse input: likewise;
        for an optimizer that accumulates gradients, which adds rows before it squares them;
        for SGD without clipping, whose update does not depend on it, if the table has fewer rows than the global batch
        has lookups, or their number is not known before the step runs.

    Args:
        gradients: of one replica's shard; None for a variable without a gradient.
        variables: their variables.
        shard: the nested tensors of the shard, in the graph in which the gradients were computed.
        optimizer: the optimizer that will apply the gradients.
        num_replicas: of all workers.
        most_examples: in each tensor of a shard; None: not known, unless shards have a static shape.

    Returns:
        The gradients. Those that stay sparse have as many rows as a shard of `most_examples` has lookups; additional
        rows are 0. If that number is not known before the step runs, they have a row for each lookup of this shard.
    """
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm"))
    any_order = isinstance(optimizer, keras.optimizers.SGD) and not clips
    accumulates = bool(getattr(optimizer, "gradient_accumulation_steps", None))

    def choose(gradient: Gradient | None, variable: keras.Variable) -> Gradient | None:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        summed = accumulates or getattr(variable, "dense_gradient", False)
        if summed or not _of_single_examples(gradient.indices, shard):
            return tf.convert_to_tensor(gradient)
        lookups = _most_lookups(gradient.indices, shard, most_examples)
        if any_order and (lookups is None or lookups * num_replicas >= variable.shape[0]):
            return tf.convert_to_tensor(gradient)
        values, indices = gradient.values, tf.cast(gradient.indices, tf.int64)
        values = tf.ensure_shape(values, [None, *variable.shape[1:]])
        if lookups is not None and indices.shape[0] is None:
            more = lookups - tf.shape(indices)[0]
            values, indices = (_padded(part, 0, more, lookups) for part in (values, indices))
        return tf.IndexedSlices(values, indices, tf.constant(list(variable.shape)))

    chosen = [choose(*pair) for pair in zip(gradients, variables, strict=True)]
    for gradient, variable in zip(chosen, variables, strict=True):
        if isinstance(gradient, tf.Tensor):
            gradient.set_shape(variable.shape)  # TensorFlow packs only gradients of known shapes into one collective.
    return chosen


def _padded(part: tf.Tensor, before: tf.Tensor | int, after: tf.Tensor | int, size: int) -> tf.Tensor:
    """Returns `part` ([n, ...]) between rows of zeros, in all `size` rows; GPUs have no `tf.pad` of integers."""
    row = part.shape[1:]
    zeros = [tf.zeros([number, *row], part.dtype) for number in (before, after)]
    return tf.ensure_shape(tf.concat([zeros[0], part, zeros[1]], axis=0), [size, *row])


def _of_single_examples(indices: tf.Tensor, shard: Any) -> bool:
    """Returns whether each example makes its own lookups."""
    if tf.executing_eagerly():
        return True
    ops, used = _ops_between(tf.nest.flatten(shard, expand_composites=True), indices, by_values=True)
    return bool(used) and not any(op.type in _UNIQUE for op in ops)


def _most_lookups(indices: tf.Tensor, shard: Any, most_examples: int | None) -> int | None:
    """Returns how many lookups a shard of `most_examples` has; None: not known."""
    static = indices.shape[0]
    if tf.executing_eagerly() or static is not None or most_examples is None:
        return static
    parts = tf.nest.flatten(shard, expand_composites=True)
    # TensorFlow infers the shape, from that of the examples. The parts of ragged and sparse tensors have other rows.
    ops, used = _ops_between(parts, indices, by_values=False)
    with_rows = {one.ref() for one in tf.nest.flatten(shard) if isinstance(one, tf.Tensor)}
    definition = tf.compat.v1.GraphDef()
    for op in ops:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        del node.input[len(op.inputs) :]  # Control inputs.
        node.attr.pop("_class", None)
    with tf.Graph().as_default():
        rows = tf.TensorShape([most_examples])
        examples = {
            one.name: tf.compat.v1.placeholder(
                one.dtype, rows.concatenate(one.shape[1:]) if one.ref() in with_rows else one.shape
            )
            for one in used
        }
        try:
            (found,) = tf.graph_util.import_graph_def(definition, examples, [indices.name])
        except ValueError:  # For example a function of the user's.
            return None
    return found.shape[0]


def _ops_between(
    shard: list[tf.Tensor], tensor: tf.Tensor, *, by_values: bool
) -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Returns the ops that compute `tensor`, and the tensors of `shard` that they use, or whose values they use."""
    starts = {one.ref() for one in shard}
    ops: dict[str, tf.Operation] = {}
    used: dict[str, tf.Tensor] = {}
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        if one.ref() in starts:
            used[one.name] = one
        elif one.op.name not in ops and not (by_values and one.op.type in _OF_SHAPES):
            ops[one.op.name] = one.op
            waiting += one.op.inputs
    return list(ops.values()), list(used.values())


def values(gradient: Gradient) -> tf.Tensor:
    """Returns a gradient's numbers: the tensor, or the rows [lookups, ...] of a sparse one."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def sum_rows(gradient: Gradient) -> tf.Tensor:
    """Returns a gradient as a tensor, each row the sum over its lookups.

    The sums are in a fixed order. `tf.convert_to_tensor` adds in no fixed order on GPUs, so replicas would differ.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices, stable=True)
    rows = tf.gather(gradient.indices, order)
    return tf.sparse.segment_sum(gradient.values, order, rows, num_segments=gradient.dense_shape[0])


def concatenate(
    gradients: Sequence[tf.IndexedSlices],
    add: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    replica: tf.Tensor,
    num_replicas: int,
) -> list[tf.IndexedSlices]:
    """Concatenates the rows of all replicas, in the order of the replicas. Collective.

    Each replica pads its rows with zeros, and the sum over replicas has the rows of all, with the same bits unless the
    type on the wire is shorter.

    Args:
        gradients: of this replica's shard, with static shapes that are the same on all replicas.
        add: sums tensors over all replicas.
        replica: this replica's number, int32 [].
        num_replicas: of all workers.
    """
    if not gradients:
        return []
    # The lookups depend on the data alone: without this, a replica could send those of the next step before another
    # replica has sent those of this one.
    with tf.control_dependencies([gradient.values for gradient in gradients]):
        lookups = [tf.cast(tf.identity(gradient.indices), tf.int64) for gradient in gradients]
    padded = []
    for gradient, indices in zip(gradients, lookups, strict=True):
        size = indices.shape[0]
        for part in (gradient.values, indices):
            before, after = replica * size, (num_replicas - 1 - replica) * size
            padded.append(_padded(part, before, after, num_replicas * size))
    sums = add(padded)
    return [
        tf.IndexedSlices(rows, indices, gradient.dense_shape)
        for gradient, rows, indices in zip(gradients, sums[::2], sums[1::2], strict=True)
    ]
