"""Gradient accumulation: the micro-batches of a shard, one after another, with the sums of their results."""

from collections.abc import Callable

import tensorflow as tf

# (sums, gradients): float64 [k], and a tensor per variable; None for a variable without a gradient.
Results = tuple[tf.Tensor, list[tf.Tensor | None]]
# Returns the results of micro-batch `index`, int32 [].
RunMicroBatch = Callable[[tf.Tensor], Results]


def in_loop(run: RunMicroBatch, count: int, zeros: Results) -> Results:
    """Adds up the results of `count` micro-batches in a loop of the graph, which holds the model once."""

    def body(index: tf.Tensor, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tuple:
        return index + 1, *_add((sums, gradients), run(index))

    _, sums, gradients = tf.while_loop(
        lambda index, *_: index < count, body, (tf.constant(0), *zeros), parallel_iterations=1
    )
    return sums, gradients


def unrolled(run: RunMicroBatch, count: int, zeros: Results) -> Results:
    """As `in_loop`, for a model that communicates in its forward pass: the graph holds it `count` times.

    TensorFlow rejects collectives of mirrored replicas inside a loop of a replica's graph.
    """
    totals = zeros
    for index in range(count):
        # One after another, so that the activations of one micro-batch are in memory.
        with tf.control_dependencies([totals[0], *totals[1]]):
            totals = _add(totals, run(tf.constant(index)))
    return totals


def _add(totals: Results, new: Results) -> Results:
    gradients = [
        old if one is None else old + tf.convert_to_tensor(one) for old, one in zip(totals[1], new[1], strict=True)
    ]
    return totals[0] + new[0], gradients
