"""Divides costly parts of an optimizer's update among the replicas.

All replicas hold the same weights and apply the same summed gradients, so each would compute the same update. But the
last bits of matrix products depend on the type of processor, and those of large sums on the number of threads, so the
replicas would drift apart. If each part is computed on one replica and sent to the others by a sum, the replicas are
equal by construction, and N replicas need 1/N of the time. The cost is an all-reduce of the parts.
"""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.training.step import collectives


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkSharing:
    """Runs each task on one replica; called in `strategy.run`, by `stages.clip` and by optimizers such as Muon."""

    num_replicas: int

    def run_tasks(
        self,
        tasks: Sequence[Callable[[], tf.Tensor]],
        sizes: Sequence[int],
        costs: Sequence[float],
        dtype: tf.DType = tf.float32,
    ) -> list[tf.Tensor]:
        """Runs each task on one replica, and returns the results of all tasks on all replicas. Collective.

        Args:
            tasks: each computes a vector from values that are equal on all replicas.
            sizes: the length of the vector of each task.
            costs: the relative computing time of each task.
            dtype: of the results.

        Returns:
            The vectors, of `dtype`, in the order of `tasks`.
        """
        if not tasks:
            return []
        replica = tf.get_static_value(replicas_lib.replica_id())
        if replica is None:
            raise RuntimeError("the replica is not known while its step is traced")
        owners = assign(costs, self.num_replicas)
        parts = [
            tf.cast(task(), dtype) if owner == replica else tf.zeros([size], dtype)
            for task, size, owner in zip(tasks, sizes, owners, strict=True)
        ]
        return tf.split(collectives.sum_differentiable(tf.concat(parts, axis=0)), list(sizes))


def assign(costs: Sequence[float], num_replicas: int) -> list[int]:
    """Returns the replica of each task: the costliest task first, each to the replica with the least work so far."""
    work, owners = [0.0] * num_replicas, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        owners[task] = work.index(min(work))
        work[owners[task]] += costs[task]
    return owners


def share_updates(optimizer: keras.optimizers.Optimizer, cluster: Cluster) -> None:
    """Sets `work_sharing` of an optimizer with this attribute, such as Muon, if there are several replicas."""
    if cluster.num_replicas > 1 and hasattr(optimizer, "work_sharing"):
        optimizer.work_sharing = WorkSharing(num_replicas=cluster.num_replicas)
