"""Branches and loops whose results a step uses, taken once for all replicas in cross-replica context."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def choose_on_all_replicas(
    predicate: tf.Tensor, when_true: Callable[[], list[tf.Tensor]], when_false: Callable[[], list[tf.Tensor]]
) -> list[tf.Tensor]:
    """As `collectives.cond_on_all_replicas`; returns on each replica the tensors of its branch, of the same shapes."""

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


def in_cross_replica_context(function: Callable[[], Any]) -> None:
    """Calls `function` once for all replicas, in cross-replica context."""
    replica_context = tf.distribute.get_replica_context()
    if replica_context is None:
        function()
    else:
        replica_context.merge_call(lambda strategy: function())
