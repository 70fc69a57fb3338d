"""`compile(run_eagerly=True)`: steps run in Python, one operation after another, to print and to set breakpoints.

Every replica makes the same step with the same collectives as a compiled one, so the weights agree up to rounding.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_fit import compiled_model


@contextlib.contextmanager
def eager_if(eagerly: bool) -> Iterator[None]:
    """If `eagerly`, calls the bodies of functions of tf.function in Python within the context."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(before or eagerly)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def batch_of(element_spec: Any) -> Any:
    """Returns one example of zeros, or of empty strings, in the structure of nested tf.TensorSpec [batch, ...]."""

    def example(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(f"compile(run_eagerly=True) needs dense tensors. Received: {spec}")
        return tf.zeros([1, *(1 if size is None else size for size in spec.shape[1:])], spec.dtype)

    return tf.nest.map_structure(example, element_spec)


def build(model: keras.Model, element_spec: Any) -> None:
    """Builds the model, its losses and its metrics by one example of zeros, without effect on their state.

    Not by tracing: layers may use `.numpy()` and breakpoints.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch_of(element_spec))
    with keras.StatelessScope(collect_losses=True):
        predictions = compiled_model.call(model, x, training=False)
        model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=sample_weight)
        model.compute_metrics(x, y, predictions, sample_weight)
