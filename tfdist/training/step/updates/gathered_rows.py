"""Gathers the rows of all replicas for the sparse gradient of a table, such as an embedding's.

Such a gradient has one row per lookup. Keras' optimizers clip and square the row of each lookup, not the sum of a
table row's lookups. So all replicas apply the rows of the global batch's lookups, in the order of the replicas: each
replica has consecutive examples of the global batch, so this is the order of the global batch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Choices for the number of rows that a replica sends if it is unknown when the step is traced.
_SIZES = [4**power for power in range(3, 13)]
# A tensor in TensorFlow's collectives must have fewer elements.
_MAX_NUMBERS = 2**31


def place(gradient: tf.IndexedSlices, replica: tf.Tensor | int, num_replicas: int, *, size: int) -> tf.IndexedSlices:
    """Returns `num_replicas * size` rows: those of `gradient` (at most `size`) from `replica * size` on, else zeros."""
    before, count = replica * size, gradient.indices.shape[0]
    if count is None:
        count = tf.shape(gradient.indices)[0]
        # With a constant `before`, TensorFlow would make gigabytes of zeros of each size when it optimizes the graph.
        before = tf.minimum(before, before + count)
    after = num_replicas * size - before - count
    parts = []
    for part in (gradient.values, gradient.indices):  # GPUs have no `tf.pad` of integers.
        zeros = [tf.zeros([number, *part.shape[1:]], part.dtype) for number in (before, after)]
        whole = tf.concat([zeros[0], part, zeros[1]], axis=0)
        parts.append(tf.ensure_shape(whole, [num_replicas * size, *part.shape[1:]]))
    return tf.IndexedSlices(*parts, gradient.dense_shape)


def gather(
    gradients: Sequence[tf.IndexedSlices],
    add: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    wire_type: Callable[[tf.Tensor], tf.DType],
) -> list[tf.IndexedSlices]:
    """Concatenates the rows of all replicas in replica order; their numbers may differ. Collective.

    Each replica sends its rows between zeros, and the sum over replicas has the rows of all, with the same bits unless
    the type on the wire is shorter. In a ring, this sends twice the bytes of a gather. A gather would also send
    lengths, for which a GPU has to wait.

    Args:
        add: sums tensors over all replicas.
        wire_type: returns the type in which a tensor is sent.

    Returns:
        The gradients. Those whose number of rows is not known when the step is traced have additional rows of zeros.
    """
    replica_context = tf.distribute.get_replica_context()
    replica, num_replicas = replica_context.replica_id_in_sync_group, replica_context.num_replicas_in_sync
    unknown: dict[int, tf.IndexedSlices] = {}
    parts: list[tf.Tensor] = []
    for index, gradient in enumerate(gradients):
        # Lookups depend only on the data: without this, a replica could send those of the next step before another
        # replica has sent those of this step.
        with tf.control_dependencies([gradient.values]):
            rows = tf.IndexedSlices(gradient.values, tf.identity(gradient.indices), gradient.dense_shape)
        if rows.indices.shape[0] is None:
            unknown[index] = _gather_unknown_number(rows, add, wire_type(rows.values))
            continue
        placed = place(rows, replica, num_replicas, size=rows.indices.shape[0])
        parts += [placed.values, placed.indices]
    sums = iter(add(parts))
    return [
        unknown[index] if index in unknown else tf.IndexedSlices(next(sums), next(sums), gradient.dense_shape)
        for index, gradient in enumerate(gradients)
    ]


def _gather_unknown_number(
    rows: tf.IndexedSlices, add: Callable[[list[tf.Tensor]], list[tf.Tensor]], wire_type: tf.DType
) -> tf.IndexedSlices:
    replica_context = tf.distribute.get_replica_context()
    count = tf.shape(rows.indices, tf.int64)[0]
    replica, num_replicas = replica_context.replica_id_in_sync_group, replica_context.num_replicas_in_sync
    (numbers,) = add([tf.one_hot(replica, num_replicas, on_value=count, off_value=tf.constant(0, tf.int64))])
    sent = tf.IndexedSlices(tf.cast(rows.values, wire_type), rows.indices, rows.dense_shape)
    total = replica_context.merge_call(_gather_by_size, args=(sent, numbers))
    return tf.IndexedSlices(tf.cast(total.values, rows.values.dtype), total.indices, rows.dense_shape)


def _gather_by_size(strategy: tf.distribute.Strategy, rows: Any, numbers: Any) -> Any:
    """Gathers rows in cross-replica context: a collective in a loop has one shape, so each size has its own collective.

    Args:
        rows: per replica, tf.IndexedSlices.
        numbers: per replica, int64 [replicas]: how many rows each replica has.

    Returns:
        Per replica, tf.IndexedSlices with the rows of all replicas.
    """
    largest = tf.reduce_max(strategy.experimental_local_results(numbers)[0])
    in_row = strategy.experimental_local_results(rows)[0].values.shape[1:].num_elements() or 1
    sizes = [size for size in _SIZES if size * in_row * strategy.num_replicas_in_sync < _MAX_NUMBERS]

    def place_own(local: tf.IndexedSlices, *, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        replica_context = tf.distribute.get_replica_context()
        placed = place(local, replica_context.replica_id_in_sync_group, replica_context.num_replicas_in_sync, size=size)
        return placed.values, placed.indices

    def gather_size(size: int) -> list[tf.Tensor]:
        parts = strategy.extended.call_for_each_replica(functools.partial(place_own, size=size), args=(rows,))
        sums = [strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, part, destinations=part) for part in parts]
        local = zip(*map(strategy.experimental_local_results, sums), strict=True)
        return [part for pair in local for part in pair]

    index = tf.reduce_sum(tf.cast(largest > tf.constant(sizes[:-1], tf.int64), tf.int32))
    parts = tf.switch_case(index, [functools.partial(gather_size, size) for size in sizes])

    def choose(local: tf.IndexedSlices) -> tf.IndexedSlices:
        replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        first = 2 * (replica % (len(parts) // 2))
        return tf.IndexedSlices(parts[first], parts[first + 1], local.dense_shape)

    return strategy.extended.call_for_each_replica(choose, args=(rows,))
