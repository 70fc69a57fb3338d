"""Where the time of each worker goes: waiting for input, computing, communicating.

A replica takes the time when its gradients are ready and when their sums are: what lies between is the communication
that nothing hides, and the wait for replicas that are not as far. These seconds stay on the replica until the end of a
call, and then travel with the vector that travels anyway.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Of a replica, in seconds: waiting for input, communicating, and all that its steps took.
COLUMNS = ("wait", "communication", "all")


def make_counter() -> tf.Variable:
    """Makes the seconds of communication since the last call, float64 [], each replica its own; to be made in scope."""
    return tf.Variable(
        tf.zeros([], tf.float64),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name="communication_seconds",
    )


def timestamp_after(tensors: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> tf.Tensor:
    """The time at which all of `tensors` are there, float64 [], in seconds."""
    with tf.control_dependencies(tf.nest.flatten([t for t in tensors if t is not None], expand_composites=True)):
        return tf.timestamp()


def one_hot_row(replica: tf.Tensor, num_replicas: int, *seconds: tf.Tensor) -> tf.Tensor:
    """Puts a replica's `seconds`, one for each of `COLUMNS`, at its place among zeros: float64 [num_replicas * 3].

    The sum over replicas then holds the seconds of each.
    """
    place = tf.one_hot(replica, num_replicas, dtype=tf.float64)
    return tf.reshape(place[:, tf.newaxis] * tf.stack(seconds), [-1])


def time_shares(seconds: np.ndarray, num_workers: int) -> list[tuple[float, float, float]]:
    """What each worker does with its time, in rank order: the parts, 0 to 1, of input, compute and communication.

    Args:
        seconds: of each replica, float64 [num_replicas, 3]; the replicas of a worker are neighbours.
        num_workers: divides them.
    """
    wait, communication, total = seconds.reshape(num_workers, -1, len(COLUMNS)).mean(axis=1).T
    total = np.maximum(total, 1e-9)
    parts = zip((wait / total).tolist(), (communication / total).tolist(), strict=True)
    return [(waiting, max(0.0, 1.0 - waiting - talking), talking) for waiting, talking in parts]
