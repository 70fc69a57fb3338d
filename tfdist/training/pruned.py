"""Computes what a function returns, without what it would write."""

from collections.abc import Callable, Sequence

import tensorflow as tf


def compute(function: Callable[..., list[tf.Tensor]], given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors that a function of the tensors `given` computes.

    The function is traced once, on the CPU, because GPUs may round products to few digits. What its outputs do not need
    is not run: assignments, prints, updates of metrics.
    """
    with tf.device("CPU:0"):
        traced = tf.compat.v1.wrap_function(function, [tf.TensorSpec.from_tensor(one) for one in given])
    return traced.prune(traced.inputs[: len(given)], traced.outputs)(*given)
