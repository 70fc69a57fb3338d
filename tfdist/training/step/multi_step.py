"""An execution: one TensorFlow call that runs many steps on the devices and returns one small vector to Python."""

from collections.abc import Callable

import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.training.step import timing
from tfdist.training.step.context import StepContext


def make_multi_step_fn(
    context: StepContext, step: Callable[..., tf.Tensor]
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Compiles the function that runs `step` many times.

    Args:
        step: `train_step` or `evaluation_step` with its context; called with the elements of the iterator.

    Returns:
        run_steps(iterator, count, stop): `count`, int64 [], is the number of steps; `stop`, float64 [], is 1 if this
        worker requests a stop. Returns, equal on all workers, the sums over replicas, float64 with the fields of
        `context.execution_layout`, and the seconds of each replica, float64 [num_replicas, 3] (see timing.py). On a
        GPU seconds are those of the host, which runs ahead of the device.
    """
    strategy, totals, communication = context.cluster.strategy, context.totals, context.communication
    num_replicas = context.cluster.num_replicas

    def local_results(value: tf.Tensor) -> list[tf.Tensor]:
        return tf.nest.flatten(strategy.experimental_local_results(value))

    def take_totals(waited: tf.Tensor, stop: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
        replica = cluster_lib.replica_id()
        row = timing.one_hot_row(replica, num_replicas, waited, tf.identity(communication), seconds)
        vector = tf.concat([tf.identity(totals), [waited, stop, seconds], row], axis=0)
        with tf.control_dependencies([vector]):
            totals.assign(tf.zeros_like(totals))
            communication.assign(tf.zeros_like(communication))
        return vector

    @tf.function(autograph=False)
    def run_steps(iterator, count, stop):
        def one_step(number: tf.Tensor, waited: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, ...]:
            elements = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(elements, expand_composites=True)):
                ready = tf.timestamp()
            sums = strategy.run(step, args=elements if isinstance(elements, tuple) else (elements,))
            with tf.control_dependencies(local_results(sums)):
                return number + 1, waited + tf.maximum(ready - done, 0.0), tf.timestamp()

        started = tf.timestamp()
        first = (tf.zeros([], tf.int64), tf.zeros([], tf.float64), started)
        _, waited, done = tf.while_loop(lambda number, *_: number < count, one_step, first)
        vector = strategy.reduce("SUM", strategy.run(take_totals, args=(waited, stop, done - started)), axis=None)
        num_fields, num_seconds = len(context.execution_layout.fields), num_replicas * len(timing.COLUMNS)
        summed, seconds = tf.split(vector, [num_fields, num_seconds])
        return summed, tf.reshape(seconds, [num_replicas, len(timing.COLUMNS)])

    return run_steps
