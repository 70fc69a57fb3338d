"""Each worker's time: waiting for input, computing, communicating.

The time of communication starts when a replica's gradients are ready, and ends when their sums are ready: it is the
part of the all-reduce that no computation overlaps, and the wait for slower replicas. The seconds stay on the replica
during an execution, and are summed together with its totals.

TensorFlow reads the time on the host. On a GPU, the host would wait until what is timed is finished, instead of
launching the next step, so steps are not timed on GPUs unless `config.report.step_times` is set. With
TF_DETERMINISTIC_OPS=1, TensorFlow rejects its own timestamp op, and Python's clock replaces it.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# Seconds of a replica: waiting for input, communicating, and in total.
COLUMNS = ("wait", "communication", "all")


def make_counter(shape: Sequence[int], name: str) -> tf.Variable:
    """Makes a variable, float64 of `shape`, that each replica adds to without communication; called in scope."""
    return tf.Variable(
        tf.zeros(shape, tf.float64),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name=name,
    )


def timestamp_after(tensors: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> tf.Tensor:
    """Returns the time at which all of `tensors` are computed: float64 [], in seconds."""
    with tf.control_dependencies(tf.nest.flatten([t for t in tensors if t is not None], expand_composites=True)):
        return now()


def now() -> tf.Tensor:
    """Returns the time: float64 [], in seconds."""
    if not rejects_timestamps():
        return tf.timestamp()
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64, name="tfdist_time"), [])


def rejects_timestamps() -> bool:
    """Returns whether TensorFlow is set to run deterministic ops only."""
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return True
    return False


Clock = Callable[[Sequence[tf.Tensor | tf.IndexedSlices | None]], tf.Tensor]


def no_timestamp(tensors: Sequence[tf.Tensor | tf.IndexedSlices | None]) -> tf.Tensor:
    """Returns 0, float64 []: the clock of steps that are not timed."""
    return tf.zeros([], tf.float64)


def choose_clock(step_times: bool | None, device_type: str) -> Clock:
    """Returns the clock of a step for `config.report.step_times` and replicas on "CPU" or "GPU" devices."""
    if step_times is None:
        step_times = device_type == "CPU" and not rejects_timestamps()
    return timestamp_after if step_times else no_timestamp


def one_hot_row(replica: tf.Tensor, num_replicas: int, *seconds: tf.Tensor) -> tf.Tensor:
    """Returns zeros, except for a replica's `seconds` in its own row: float64 [num_replicas * 3], row by row.

    The sum over replicas holds the seconds of each. `seconds` are in the order of `COLUMNS`.
    """
    place = tf.one_hot(replica, num_replicas, dtype=tf.float64)
    return tf.reshape(place[:, tf.newaxis] * tf.stack(seconds), [-1])


def time_fractions(seconds: np.ndarray, num_workers: int) -> list[tuple[float, float, float]]:
    """Returns each worker's fractions of time, 0 to 1, for input, compute and communication, in rank order.

    Args:
        seconds: of each replica, float64 [num_replicas, 3]; the replicas of a worker are adjacent.
        num_workers: a divisor of the number of replicas.
    """
    wait, communication, total = seconds.reshape(num_workers, -1, len(COLUMNS)).mean(axis=1).T
    total = np.maximum(total, 1e-9)
    fractions = zip((wait / total).tolist(), (communication / total).tolist(), strict=True)
    return [(waiting, max(0.0, 1.0 - waiting - sending), sending) for waiting, sending in fractions]
