"""Shares costly parts of an optimizer's update between the replicas.

All replicas hold the same weights and apply the same summed gradients, so each of them would compute the same update.
Products of matrices differ in the last bits between kinds of processors, and the replicas would drift apart. If every
part is computed by one replica, and a sum brings it to the others, the replicas are equal by construction, and N
replicas need 1/N of the time. The sum costs an all-reduce of the parts.
"""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster.cluster import Cluster
from tfdist.training.step import gradients as gradients_lib


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkSharing:
    """What an optimizer with an attribute `work_sharing` uses in `apply`, which is called in `strategy.run`."""

    num_replicas: int

    def run(
        self, tasks: Sequence[Callable[[], tf.Tensor]], sizes: Sequence[int], costs: Sequence[float]
    ) -> list[tf.Tensor]:
        """Runs each task on one replica, and returns the results of all tasks on all replicas. Collective.

        Args:
            tasks: each returns a float32 vector, from values that are equal on all replicas.
            sizes: the lengths of the vectors.
            costs: relative costs of the tasks.

        Returns:
            The vectors, in the order of `tasks`.
        """
        if not tasks:
            return []
        replica = tf.get_static_value(cluster_lib.replica_id())
        assert replica is not None, "the replica is known when its step is traced"
        owners = assign(costs, self.num_replicas)
        parts = [
            tf.cast(task(), tf.float32) if owner == replica else tf.zeros([size])
            for task, size, owner in zip(tasks, sizes, owners, strict=True)
        ]
        return tf.split(gradients_lib.sum_value(tf.concat(parts, axis=0)), list(sizes))


def assign(costs: Sequence[float], num_replicas: int) -> list[int]:
    """Returns the replica of each task: the costliest task first, each to the replica with the least work so far."""
    work, owners = [0.0] * num_replicas, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        owners[task] = work.index(min(work))
        work[owners[task]] += costs[task]
    return owners


def share(optimizer: keras.optimizers.Optimizer, cluster: Cluster) -> None:
    """Sets `work_sharing` of an optimizer that has this attribute, such as Muon, if there are several replicas."""
    if cluster.num_replicas > 1 and hasattr(optimizer, "work_sharing"):
        optimizer.work_sharing = WorkSharing(num_replicas=cluster.num_replicas)
