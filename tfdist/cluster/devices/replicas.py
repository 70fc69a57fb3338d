"""What a training step knows of its replica, and the ring that sums over workers."""

from typing import Any

import tensorflow as tf

rings: list[Any] = []  # Empty, or one `tcp_ring.TcpRing`, which replaces TensorFlow's sum over workers.


def replica_id() -> tf.Tensor:
    """Returns the index of the calling replica among all replicas, int32 []; to be called in `strategy.run`."""
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def is_first() -> bool:
    """Returns whether replica 0 is being traced; False in cross-replica context, True without a strategy."""
    return tf.distribute.get_replica_context() is not None and tf.get_static_value(replica_id()) == 0
