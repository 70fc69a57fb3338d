"""Each worker's time: waiting for input, computing, communicating.

Communication is the time from when a replica's gradients are ready until their sums are: the all-reduce that no
computation overlaps, and the wait for slower replicas. The seconds stay on the replica during an execution, and are
reduced together with its totals.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Seconds of a replica: waiting for input, communicating, and in all.
COLUMNS = ("wait", "communication", "all")


def make_counter() -> tf.Variable:
    """Makes the seconds of communication since the execution started: float64 [], per replica; called in scope."""
    return tf.Variable(
        tf.zeros([], tf.float64),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name="communication_seconds",
    )


def timestamp_after(tensors: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> tf.Tensor:
    """Returns the time at which all of `tensors` are computed: float64 [], in seconds."""
    with tf.control_dependencies(tf.nest.flatten([t for t in tensors if t is not None], expand_composites=True)):
        return tf.timestamp()


def one_hot_row(replica: tf.Tensor, num_replicas: int, *seconds: tf.Tensor) -> tf.Tensor:
    """Returns zeros, except for a replica's `seconds` in its own row: float64 [num_replicas * 3], row by row.

    The sum over replicas holds the seconds of each. `seconds` are in the order of `COLUMNS`.
    """
    place = tf.one_hot(replica, num_replicas, dtype=tf.float64)
    return tf.reshape(place[:, tf.newaxis] * tf.stack(seconds), [-1])


def time_shares(seconds: np.ndarray, num_workers: int) -> list[tuple[float, float, float]]:
    """Returns each worker's fractions of time, 0 to 1, for input, compute and communication, in rank order.

    Args:
        seconds: of each replica, float64 [num_replicas, 3]; the replicas of a worker are adjacent.
        num_workers: a divisor of the number of replicas.
    """
    wait, communication, total = seconds.reshape(num_workers, -1, len(COLUMNS)).mean(axis=1).T
    total = np.maximum(total, 1e-9)
    fractions = zip((wait / total).tolist(), (communication / total).tolist(), strict=True)
    return [(waiting, max(0.0, 1.0 - waiting - sending), sending) for waiting, sending in fractions]
