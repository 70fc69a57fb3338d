"""Communication between replicas in a step, other than the gradients' all-reduce; called in `strategy.run`."""

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

    # The argument of `reduce_context`; None outside of it.
    reduce: Callable[[tf.Tensor], tf.Tensor] | None = None


_trace = _Trace()


def reduce_context(reduce: Callable[[tf.Tensor], tf.Tensor]) -> AbstractContextManager[None]:
    """In the block, `sum_differentiable` calls `reduce` instead of `all_reduce`."""
    return patching.set_in_block(_trace, reduce=reduce)


def all_reduce(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas, in `strategy.run`; the gradient is the sum of the upstream ones."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def sum_differentiable(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas in a separate collective; outside of `strategy.run`, returns it.

    bfloat16 is summed in float32: TensorFlow's NCCL collectives do not support it.
    """
    if num_replicas() == 1:
        return value
    if value.dtype == tf.bfloat16:
        return tf.cast(sum_differentiable(tf.cast(value, tf.float32)), value.dtype)
    return (_trace.reduce or all_reduce)(value)


def cond_on_all_replicas(predicate: tf.Tensor, when_true: Callable[[], Any], when_false: Callable[[], Any]) -> Any:
    """Calls `when_true` on every replica if `predicate` (bool [], equal on all replicas) is true, else `when_false`.

    The condition is in cross-replica context: Keras rejects an optimizer's update in a `tf.cond` on a replica. No
    gradient passes through it.

    Returns:
        What the branch returns on this replica: tensors, in the same structure in both branches.
    """
    context = tf.distribute.get_replica_context()
    if context is None:
        return tf.cond(predicate, when_true, when_false)

    def on_all_replicas(strategy: tf.distribute.Strategy, predicate: tf.Tensor, *functions: Callable) -> None:
        def run(branch: Callable) -> list[Any]:
            results: list[Any] = []  # The replicas of a process are traced in turn.
            strategy.extended.call_for_each_replica(lambda call: results.append(call()), args=(branch,))
            return results

        keep, *branches = functions
        chosen = strategy.experimental_local_results(predicate)[0]
        results = tf.cond(chosen, *(functools.partial(run, branch) for branch in branches))
        for put, result in zip(strategy.experimental_local_results(keep), results, strict=True):
            put(result)

    kept: list[Any] = []
    context.merge_call(on_all_replicas, args=(predicate, kept.append, when_true, when_false))
    return kept[0]


def call_once(function: Callable[[], None]) -> None:
    """Calls `function` once for all replicas, in cross-replica context."""
    context = tf.distribute.get_replica_context()
    if context is None:
        function()
    else:
        context.merge_call(lambda strategy: function())


def repeat_on_all_replicas(function: Callable[[], tf.Tensor]) -> None:
    """Calls `function` on every replica until it returns False: bool [], equal on all replicas.

    The loop is in cross-replica context: TensorFlow rejects collectives of mirrored replicas in a loop on a replica.
    """

    def on_all_replicas(strategy: tf.distribute.Strategy, function: Callable) -> None:
        def run(again: tf.Tensor) -> tuple[tf.Tensor]:
            again = strategy.extended.call_for_each_replica(_call, args=(function,))
            return (strategy.experimental_local_results(again)[0],)

        tf.while_loop(lambda again: again, run, (tf.constant(True),), parallel_iterations=1)

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(function,))


def _call(function: Callable[[], Any]) -> Any:
    return function()
