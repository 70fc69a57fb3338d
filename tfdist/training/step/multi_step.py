"""UNDOCUMENTED."""

import math
from collections.abc import Callable

import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.training.step import timing
from tfdist.training.step.context import StepContext


def make_multi_step_fn(
    trainer: StepContext, step: Callable[..., tf.Tensor]
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Compiles the call that runs `step` many times on the devices and hands one small vector to Python.

    Returns:
        call(iterator, count, stop): `count` int64 [] steps; `stop` float64 [], 1 where this worker asks all to stop.
        Returns, equal on all workers, float64 [len(names) + len(EXTRAS)], the sums over all replicas, and float64
        [num_replicas, 3], the seconds of each (see timing.py). `skipped` steps were left out, the first of them after
        `clean` others. `seconds` is what the steps took, of which `wait_seconds` went by waiting for input; on a GPU
        all are of the host, which runs ahead of the device.
    """
    strategy, totals, communication = trainer.cluster.strategy, trainer.totals, trainer.communication
    num_replicas = trainer.cluster.num_replicas

    def local(value: tf.Tensor) -> list[tf.Tensor]:
        return tf.nest.flatten(strategy.experimental_local_results(value))

    def take_totals(waited: tf.Tensor, stop: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
        own = timing.one_hot_row(cluster_lib.replica_id(), num_replicas, waited, tf.identity(communication), seconds)
        vector = tf.concat([tf.identity(totals), [waited, stop, seconds], own], axis=0)
        with tf.control_dependencies([vector]):
            totals.assign(tf.zeros_like(totals))
            communication.assign(tf.zeros_like(communication))
        return vector

    @tf.function(autograph=False)
    def call(iterator, count, stop):
        def one(number: tf.Tensor, waited: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, ...]:
            elements = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(elements, expand_composites=True)):
                ready = tf.timestamp()
            sums = strategy.run(step, args=elements if isinstance(elements, tuple) else (elements,))
            with tf.control_dependencies(local(sums)):
                return number + 1, waited + tf.maximum(ready - done, 0.0), tf.timestamp()

        started = tf.timestamp()
        first = (tf.zeros([], tf.int64), tf.zeros([], tf.float64), started)
        _, waited, done = tf.while_loop(lambda number, *_: number < count, one, first)
        vector = strategy.reduce("SUM", strategy.run(take_totals, args=(waited, stop, done - started)), axis=None)
        seconds = num_replicas * len(timing.COLUMNS)
        return vector[:-seconds], tf.reshape(vector[-seconds:], [num_replicas, -1])

    return call


def means(trainer: StepContext, totals: dict[str, float]) -> dict[str, float]:
    """Divides sums by the number of examples, once; NaN where all steps were skipped."""
    return {name: totals[name] / (totals["examples"] or math.nan) for name in trainer.names}
