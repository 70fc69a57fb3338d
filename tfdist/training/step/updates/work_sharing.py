"""Shares costly parts of an optimizer's update between the replicas.

All replicas hold the same weights and apply the same summed gradients, so each of them would compute the same update.
Products of matrices differ in the last bits between kinds of processors, sums of large tensors between numbers of
threads: the replicas would drift apart. If one replica computes each part, and a sum brings it to the others, the
replicas are equal by construction, and N replicas need 1/N of the time. The sum costs an all-reduce of the parts.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.cluster.devices.replicas import Replicas
from tfdist.training.step import gradients as gradients_lib
from tfdist.training.step.tables import sparse_gradients


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkSharing:
    """Used in `apply`, within `strategy.run`, by an optimizer with an attribute `work_sharing`."""

    num_replicas: int

    def run(
        self,
        tasks: Sequence[Callable[[], tf.Tensor]],
        sizes: Sequence[int],
        costs: Sequence[float],
        dtype: tf.DType = tf.float32,
    ) -> list[tf.Tensor]:
        """Runs each task on one replica, and returns the results of all tasks on all replicas. Collective.

        Args:
            tasks: each returns a vector, from values that are equal on all replicas.
            sizes: the lengths of the vectors.
            costs: relative costs of the tasks.
            dtype: of the sum.

        Returns:
            The vectors, of `dtype`, in the order of `tasks`.
        """
        if not tasks:
            return []
        replica = tf.get_static_value(replicas_lib.replica_id())
        assert replica is not None, "the replica is known when its step is traced"
        owners = assign(costs, self.num_replicas)
        parts = [
            tf.cast(task(), dtype) if owner == replica else tf.zeros([size], dtype)
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


def share(optimizer: keras.optimizers.Optimizer, cluster: Replicas) -> None:
    """Sets `work_sharing` of an optimizer that has this attribute, such as Muon, if there are several replicas."""
    if cluster.num_replicas > 1 and hasattr(optimizer, "work_sharing"):
        optimizer.work_sharing = WorkSharing(num_replicas=cluster.num_replicas)


def make_clip(
    norm: float | None, cluster: Replicas, *, equal: bool
) -> Callable[[gradients_lib.Gradients], gradients_lib.Gradients]:
    """Returns the function that clips gradients to the global L2 norm `norm`; None: it returns them unchanged.

    Args:
        equal: whether all replicas clip the same gradients. With several workers, which may have different numbers of
            threads, they then share the computation of the norm.
    """
    if norm is None:
        return lambda gradients: gradients
    if not equal or cluster.num_workers == 1:
        return functools.partial(gradients_lib.clip, norm=norm)
    return functools.partial(_clip_together, WorkSharing(num_replicas=cluster.num_replicas), norm)


def _clip_together(sharing: WorkSharing, norm: float, gradients: gradients_lib.Gradients) -> gradients_lib.Gradients:
    """As `gradients.clip`, with the same bits on one kind of workers."""
    present = [gradient for gradient in gradients if gradient is not None]
    numbers = [sparse_gradients.values(gradient) for gradient in present]
    tasks = [lambda values=values: tf.reshape(tf.nn.l2_loss(values), [1]) for values in numbers]
    costs = [values.shape.num_elements() or 1 for values in numbers]
    halves = sharing.run(tasks, [1] * len(tasks), costs, numbers[0].dtype)
    return gradients_lib.clip(gradients, norm, tf.sqrt(2.0 * tf.reduce_sum(tf.concat(halves, axis=0))))
