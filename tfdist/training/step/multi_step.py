"""An execution: one TensorFlow call that runs many steps on the devices and returns one small vector to Python."""

from collections.abc import Callable

import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.training.step import timing
from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import seed_generators, stateful_random


def make_multi_step_fn(
    context: StepContext, step: Callable[..., tf.Tensor], trains: bool
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Compiles the function that runs `step` many times.

    Args:
        step: `train_step` or `evaluation_step` with its context; called with the elements of the iterator.
        trains: True: training; False: evaluation.

    Returns:
        run_steps(iterator, count, stop, first=0): `count`, int32 [], is the number of steps; `stop`, float64 [], is 1
        if this worker requests a stop, else 0; `first`, int32 [], is the index of the first batch of an evaluation. It
        returns the sums over replicas, float64, in the order of `context.names_of_execution`, and the seconds of each
        replica, float64 [num_replicas, 3] (see timing.py); both are equal on all workers.
    """
    strategy, totals, communication = context.cluster.strategy, context.totals, context.reduction.seconds
    num_replicas, clock = context.cluster.num_replicas, context.reduction.clock

    def read_and_reset_totals(waited: tf.Tensor, stop: tf.Tensor, started: tf.Tensor) -> tf.Tensor:
        replica = replicas_lib.replica_id()
        sums = tf.identity(totals)
        seconds = timing.timestamp_after([sums]) - started
        row = timing.one_hot_row(replica, num_replicas, waited, tf.identity(communication), seconds)
        vector = tf.concat([sums, [waited, stop, seconds], row], axis=0)
        with tf.control_dependencies([vector]):
            totals.assign(tf.zeros_like(totals))
            communication.assign(tf.zeros_like(communication))
        return vector

    # Loop counters are int32, which TensorFlow keeps in host memory, even with GPUs. With int64 the host would wait for
    # the device in each step.
    @tf.function(autograph=False)
    def run_steps(iterator, count, stop, first=0):
        step_halves = seed_generators.step_as_int32_pair(context.step_count)

        def one_step(number: tf.Tensor, waited: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, ...]:
            elements = next(iterator)
            ready = clock(tf.nest.flatten(elements, expand_composites=True))
            # Not `number * trains`: TensorFlow folds it to a constant that still waits for `number`.
            steps = number if trains else tf.zeros([], tf.int32)
            counted = seed_generators.use_count_of_loop(step_halves, steps, lambda: first + number)
            with counted, stateful_random.draw_statelessly():
                sums = strategy.run(step, args=elements if isinstance(elements, tuple) else (elements,))
            return number + 1, waited + tf.maximum(ready - done, 0.0), clock(strategy.experimental_local_results(sums))

        started = timing.now()
        last = tf.identity(count)
        start = (tf.zeros([], tf.int32), tf.zeros([], tf.float64), clock([]))
        _, waited, _ = tf.while_loop(lambda number, *_: number < last, one_step, start)
        vector = strategy.reduce("SUM", strategy.run(read_and_reset_totals, args=(waited, stop, started)), axis=None)
        num_fields, num_seconds = len(context.names_of_execution), num_replicas * len(timing.COLUMNS)
        summed, seconds = tf.split(vector, [num_fields, num_seconds])
        return summed, tf.reshape(seconds, [num_replicas, len(timing.COLUMNS)])

    return run_steps
