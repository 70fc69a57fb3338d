"""`tfdist.all_gather`: tensors of the global batch in a user's step."""

from typing import Any

import tensorflow as tf

from tfdist.keras_fit.own_step import replica_step
from tfdist.training import api as trainer

# `sum_value` supports these on all devices; others are sent as int32 or int64.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def all_gather(tensor: Any) -> tf.Tensor:
    """Returns the rows of all replicas, for a loss over the global batch.

    Called in the `train_step` or `test_step` of a model that `tfdist.fit` or `tfdist.evaluate` runs; all replicas must
    call it. On one replica, and under Keras' own `fit` on one device, the tensor is returned as it is.

    Args:
        tensor: one row per example of this replica's shard: [examples, ...], of any dtype except string and complex.

    Returns:
        [examples of the global batch, ...], in the order of the global batch. Differentiable: if every replica computes
        the same loss from it, the gradients are those of this loss.

    Raises:
        ValueError: the tensor has no rows, or its rows are not the examples of the shard.
        RuntimeError: several replicas run a step that is not tfdist's.
    """
    tensor = tf.convert_to_tensor(tensor)
    step = replica_step.current()
    if step is None:
        if trainer.num_replicas() > 1:
            raise RuntimeError(
                "tfdist.all_gather works in a train_step or test_step that tfdist.fit or tfdist.evaluate runs. Call "
                "tfdist.fit(cluster, model, ...) instead of model.fit(...)."
            )
        return tensor
    if tensor.shape.rank in (0, None):
        raise ValueError(f"tfdist.all_gather takes one row per example. Received: shape {tensor.shape}")
    if step.replicas == 1 or step.without_effect:
        return tensor
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    text = "tfdist.all_gather takes one row per example: gather the parts of concatenated tensors one by one. Rows:"
    check = tf.debugging.Assert(tf.equal(rows, tf.maximum(step.count, 1)), [text, rows, "examples:", step.count])
    with tf.control_dependencies([check]):
        wire = tensor.dtype if tensor.dtype in _DTYPES else tf.int64 if tensor.dtype.size > 4 else tf.int32
        return tf.cast(step.gather(tf.cast(tensor, wire)), tensor.dtype)
