"""`Replicas`: what a training step uses of a `Cluster`, without the code that connects and monitors workers."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf

rings: list[Any] = []  # A `tcp_ring.TcpRing`, which sums tensors over the workers in place of TensorFlow; or none.


class Replicas(Protocol):
    """The replicas of all workers of a run, seen from one of them; a `Cluster` implements it."""

    strategy: tf.distribute.Strategy
    num_workers: int
    num_replicas: int
    # Of the sums: "nccl", "ring" or "tcp".
    implementation: str
    # Of the replicas: "CPU" or "GPU".
    device_type: str

    def scope(self) -> AbstractContextManager:
        """Returns the scope in which models, optimizers and metrics are created."""


def replica_id() -> tf.Tensor:
    """Returns the index of the calling replica among all replicas, int32 []; to be called in `strategy.run`."""
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def is_first() -> bool:
    """Returns whether the graph of the first of all replicas is traced; False outside of `strategy.run`."""
    return tf.distribute.get_replica_context() is not None and tf.get_static_value(replica_id()) == 0
