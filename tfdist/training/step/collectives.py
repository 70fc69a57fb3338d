"""Communication between replicas inside a step, apart from the sum of the gradients; called in `strategy.run`."""

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.config import patching


def num_replicas() -> int:
    """Returns the number of all replicas; 1 outside of `strategy.run`."""
    replica_context = tf.distribute.get_replica_context()
    return 1 if replica_context is None else replica_context.num_replicas_in_sync


class _Trace(threading.local):
    """Settings of the step that this thread traces: each replica of a process is traced in its own thread, in turn."""

    # The arguments of `loss_weight_context` and `reduce_context`; None outside of them.
    weight: tf.Tensor | None = None
    reduce: Callable[[tf.Tensor], tf.Tensor] | None = None


_trace = _Trace()
ReplicaContext = tf.distribute.ReplicaContext


def loss_weight_context(weight: tf.Tensor) -> AbstractContextManager[None]:
    """Traces a step whose gradients are multiplied by `weight` (float32 [], 1 in total) after the backward pass.

    The loss is then the mean of the replicas' losses with these weights, and gradients through `sum_differentiable` are
    those of this mean.
    """
    return patching.set_in_block(_trace, weight=weight)


def reduce_context(reduce: Callable[[tf.Tensor], tf.Tensor]) -> AbstractContextManager[None]:
    """Traces a computation in which `sum_differentiable` calls `reduce` in the place of `all_reduce`."""
    return patching.set_in_block(_trace, reduce=reduce)


def all_reduce(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas, in `strategy.run`; the gradient is the sum of the upstream ones."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def sum_differentiable(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas in a collective of its own; outside of `strategy.run`, returns it.

    bfloat16 is summed in float32: TensorFlow's NCCL collectives do not support it.
    """
    if num_replicas() == 1:
        return value
    if value.dtype == tf.bfloat16:
        return tf.cast(sum_differentiable(tf.cast(value, tf.float32)), value.dtype)
    reduce, weight = _trace.reduce or all_reduce, _trace.weight
    if weight is None:
        return reduce(value)

    @tf.custom_gradient
    def total(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return reduce(value), backward

    # Divided by the weight that multiplies the gradient later. `total` and `backward` are adjoint: each is the gradient
    # of the other.
    @tf.custom_gradient
    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        factor = tf.cast(weight, upstream.dtype)
        summed = all_reduce(tf.convert_to_tensor(upstream) * factor)
        return tf.math.divide_no_nan(summed, factor), total

    return total(value)


def cond_on_all_replicas(predicate: tf.Tensor, when_true: Callable[[], Any], when_false: Callable[[], Any]) -> None:
    """Calls on every replica `when_true` if `predicate` (bool [], equal on all replicas), else `when_false`.

    In cross-replica context: Keras rejects an optimizer's update in a `tf.cond` on a replica.
    """

    def on_all_replicas(strategy: tf.distribute.Strategy, predicate: tf.Tensor, *branches: Callable) -> None:
        def run(branch: Callable) -> tf.Tensor:
            strategy.extended.call_for_each_replica(_call, args=(branch,))
            return tf.zeros([])

        chosen = strategy.experimental_local_results(predicate)[0]
        tf.cond(chosen, *(functools.partial(run, branch) for branch in branches))

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(predicate, when_true, when_false))


def _call(function: Callable[[], Any]) -> None:
    function()  # Without its result, which may differ between branches.
