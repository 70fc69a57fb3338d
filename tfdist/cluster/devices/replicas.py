"""`Replicas`: what a training step uses of a `Cluster`, without the code that connects and monitors workers."""

from contextlib import AbstractContextManager
from typing import Protocol

import tensorflow as tf


class Replicas(Protocol):
    """The replicas of a run, seen from one worker; a `Cluster` implements it."""

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy that runs the local replicas."""

    @property
    def num_workers(self) -> int:
        """The number of workers."""

    @property
    def num_replicas(self) -> int:
        """The replicas of all workers."""

    @property
    def implementation(self) -> str:
        """The implementation of the collectives: "nccl" or "ring"."""

    @property
    def device_type(self) -> str:
        """The type of the replicas' devices: "CPU" or "GPU"."""

    def scope(self) -> AbstractContextManager:
        """Returns the scope in which models, optimizers and metrics are created."""


def replica_id() -> tf.Tensor:
    """Returns the index of the calling replica among all replicas, int32 []; to be called in `strategy.run`."""
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def is_first() -> bool:
    """Returns whether the graph of the first of all replicas is traced; False outside of `strategy.run`."""
    return tf.distribute.get_replica_context() is not None and tf.get_static_value(replica_id()) == 0
