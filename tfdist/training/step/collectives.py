"""Communication between replicas inside a step, apart from the sum of the gradients; called in `strategy.run`."""

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def num_replicas() -> int:
    """Returns the number of all replicas; 1 outside of `strategy.run`."""
    replica_context = tf.distribute.get_replica_context()
    return 1 if replica_context is None else replica_context.num_replicas_in_sync


class _Trace(threading.local):
    """Settings of the step that this thread traces: each replica of a process is traced in its own thread, in turn."""

    # The argument of `loss_weight_context`; None outside of it.
    weight: tf.Tensor | None = None


_trace = _Trace()


@contextlib.contextmanager
def loss_weight_context(weight: tf.Tensor) -> Iterator[None]:
    """Traces a step whose gradients are multiplied by `weight` (float32 [], 1 in total) after the backward pass.

    The loss is then the mean of the replicas' losses with these weights, and gradients through `sum_differentiable` are
    those of this mean.
    """
    _trace.weight = weight
    try:
        yield
    finally:
        _trace.weight = None


def sum_differentiable(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas in a collective of its own; outside of `strategy.run`, returns it.

    bfloat16 is summed in float32: TensorFlow's NCCL collectives do not support it.
    """
    if num_replicas() == 1:
        return value
    if value.dtype == tf.bfloat16:
        return tf.cast(sum_differentiable(tf.cast(value, tf.float32)), value.dtype)
    replica_context = tf.distribute.get_replica_context()
    if _trace.weight is None:
        return replica_context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    weight = _trace.weight

    @tf.custom_gradient
    def total(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return replica_context.all_reduce(tf.distribute.ReduceOp.SUM, value), backward

    # Divided by the weight that multiplies the gradient later. `total` and `backward` are adjoint: each is the gradient
    # of the other.
    @tf.custom_gradient
    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        own = tf.cast(weight, upstream.dtype)
        summed = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, tf.convert_to_tensor(upstream) * own)
        return tf.math.divide_no_nan(summed, own), total

    return total(value)


# Of the replicas, and of the first of `new_keys`; those that TensorFlow chooses itself start at 1 and at 100.
_GROUP_KEY, _keys = 2**20, itertools.count(2**20)


def new_keys(count: int) -> list[int]:
    """Returns keys of `all_gather`, the same on all workers if all call this equally often."""
    return [next(_keys) for _ in range(count)]


def all_gather(value: tf.Tensor, key: int, *, like: tf.Variable, one_cpu: bool) -> tf.Tensor:
    """Returns `value` [n] of all replicas, with the same bits: [replicas, n]; called in `strategy.run`.

    Args:
        key: of the gather in a step, one of `new_keys`: the same on all replicas.
        like: a variable on the replica's device.
        one_cpu: whether each worker has one replica, on its CPU. Then TensorFlow's op is called directly: the method of
            its replica context also gathers the lengths, and copies the values six times.
    """
    if one_cpu:
        rows = tf.raw_ops.CollectiveGatherV2(
            input=value,
            group_size=num_replicas(),
            group_key=_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            communication_hint="ring",
        )
    else:
        with tf.device(like.handle.device):
            value = tf.identity(value)
        rows = tf.distribute.get_replica_context().all_gather(value, axis=0)
    return tf.reshape(rows, [num_replicas(), *value.shape])


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


def choose_on_all_replicas(
    predicate: tf.Tensor, when_true: Callable[[], list[tf.Tensor]], when_false: Callable[[], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """As `cond_on_all_replicas`; returns on each replica the results of its branch, tensors of the same shapes."""

    def on_all_replicas(strategy: tf.distribute.Strategy, predicate: tf.Tensor, *branches: Callable) -> Any:
        def run(branch: Callable) -> list[tuple[tf.Tensor, ...]]:
            results = strategy.extended.call_for_each_replica(_result, args=(branch,))
            return [strategy.experimental_local_results(one) for one in results]

        chosen = strategy.experimental_local_results(predicate)[0]
        found = tf.cond(chosen, *(functools.partial(run, branch) for branch in branches))

        def own() -> list[tf.Tensor]:
            replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return [of_replicas[replica % len(of_replicas)] for of_replicas in found]

        return strategy.extended.call_for_each_replica(own)

    return tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(predicate, when_true, when_false))


def repeat_on_all_replicas(function: Callable[[], tf.Tensor]) -> None:
    """Calls `function` on every replica until it returns False: bool [], equal on all replicas.

    In cross-replica context: TensorFlow rejects collectives of mirrored replicas in a loop on a replica.
    """

    def on_all_replicas(strategy: tf.distribute.Strategy, function: Callable) -> None:
        def run(again: tf.Tensor) -> tuple[tf.Tensor]:
            again = strategy.extended.call_for_each_replica(_result, args=(function,))
            return (strategy.experimental_local_results(again)[0],)

        tf.while_loop(lambda again: again, run, (tf.constant(True),), parallel_iterations=1)

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(function,))


def _result(function: Callable[[], Any]) -> Any:
    return function()


def _call(function: Callable[[], Any]) -> None:
    function()  # Without its result, which may differ between branches.


def in_cross_replica_context(function: Callable[[], Any]) -> None:
    """Calls `function` once for all replicas, in cross-replica context."""
    replica_context = tf.distribute.get_replica_context()
    if replica_context is None:
        function()
    else:
        replica_context.merge_call(lambda strategy: function())
