"""The updates of Keras' optimizers from row moments, by Keras' own formulas.

In Keras, the gradient of a table is a row for each lookup. In the formulas of the optimizers, clipping, squares,
absolute values and products with a tensor of the table's shape apply to each of these rows; all other operations first
add the rows of an entry. So the formulas need only the sums of (clipped) rows, and of their squares or absolute values.
A factor f multiplies these by f, by f squared and by the absolute value of f.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.training.step.updates import row_moments


def install_update(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer of Keras update weights from row moments, and add the rows of lookups in a fixed order."""
    if row_moments.used_by(optimizer):  # On the object: Keras writes the class into a saved model.
        optimizer.update_step = functools.partial(_update, optimizer)


def install_clipping(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer that clips take row moments.

    As in Keras, a norm is over the rows of all lookups. By value, rows are clipped before their moments are taken.
    """
    if row_moments.clips(optimizer):
        optimizer._clip_gradients = functools.partial(_clip, optimizer)


def _update(
    optimizer: keras.optimizers.Optimizer,
    gradient: row_moments.Gradient,
    variable: tf.Variable,
    learning_rate: tf.Tensor | float,
) -> None:
    """Updates one weight and its slots; called by Keras on each device."""
    step = functools.partial(type(optimizer).update_step, optimizer)
    if isinstance(gradient, tf.Tensor):
        step(gradient, variable, learning_rate)
        return
    if isinstance(gradient, tf.IndexedSlices):
        gradient = row_moments.Needs(moments=row_moments.used_by(optimizer)).of_rows(gradient)
    rows = _Rows(row_moments.RowMoments(*(None if one is None else tf.cast(one, variable.dtype) for one in gradient)))
    with _ops_of(type(optimizer)):
        step(rows, variable, learning_rate)


def _clip(optimizer: keras.optimizers.Optimizer, gradients: list[row_moments.Gradient | None]) -> list[Any]:
    """Clips as `Optimizer._clip_gradients`: each gradient by value or by its own norm, or all by the global norm."""
    if not any(isinstance(gradient, row_moments.RowMoments) for gradient in gradients):
        return type(optimizer)._clip_gradients(optimizer, gradients)
    if not row_moments.clips_by_norm(optimizer):
        others = [None if isinstance(gradient, row_moments.RowMoments) else gradient for gradient in gradients]
        clipped = type(optimizer)._clip_gradients(optimizer, others)
        return [old if new is None else new for old, new in zip(gradients, clipped, strict=True)]
    if optimizer.clipnorm is None:
        halves = [row_moments.half_square(gradient) for gradient in gradients if gradient is not None]
        norm = tf.sqrt(2.0 * tf.add_n(halves))
        summed = [None if gradient is None else row_moments.sums(gradient) for gradient in gradients]
        return tf.clip_by_global_norm(summed, optimizer.global_clipnorm, norm)[0]

    def clip(gradient: row_moments.Gradient | None) -> row_moments.Gradient | None:
        if not isinstance(gradient, row_moments.RowMoments):
            return None if gradient is None else tf.clip_by_norm(gradient, optimizer.clipnorm)
        norm = tf.sqrt(2.0 * row_moments.half_square(gradient))
        return row_moments.scale([gradient], optimizer.clipnorm / tf.maximum(norm, optimizer.clipnorm))[0]

    return [clip(gradient) for gradient in gradients]


class _Rows:
    """The rows of all lookups in a table, represented by their moments; as a tensor, the sums of the rows."""

    def __init__(self, moments: row_moments.RowMoments) -> None:
        self.moments = moments
        self.dtype, self.shape = moments.sums.dtype, moments.sums.shape

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.moments.sums, dtype, name=name)

    def map(self, linear: Callable[[Any], tf.Tensor]) -> "_Rows":
        """Returns the rows after a function that multiplies each by the same factor."""
        return _Rows(row_moments.mapped(self.moments, linear))


class _RowOps:
    """`keras.ops` for formulas with `_Rows`: these operations keep rows, all others take their sums."""

    def __getattr__(self, name: str) -> Any:
        return getattr(keras.ops, name)

    def cast(self, x: Any, dtype: Any) -> Any:
        return x if isinstance(x, _Rows) else keras.ops.cast(x, dtype)

    def square(self, x: Any) -> Any:
        return x.moments.squares if isinstance(x, _Rows) else keras.ops.square(x)

    def abs(self, x: Any) -> Any:
        return x.moments.magnitudes if isinstance(x, _Rows) else keras.ops.abs(x)

    def negative(self, x: Any) -> Any:
        return x.map(keras.ops.negative) if isinstance(x, _Rows) else keras.ops.negative(x)

    def multiply(self, x1: Any, x2: Any) -> Any:
        rows, factor = (x2, x1) if isinstance(x2, _Rows) else (x1, x2)
        multiply = functools.partial(keras.ops.multiply, factor)
        return rows.map(multiply) if isinstance(rows, _Rows) else keras.ops.multiply(x1, x2)

    def divide(self, x1: Any, x2: Any) -> Any:
        divide = lambda rows: keras.ops.divide(rows, x2)  # noqa: E731
        return x1.map(divide) if isinstance(x1, _Rows) else divide(x1)


@contextlib.contextmanager
def _ops_of(kind: type[keras.optimizers.Optimizer]) -> Iterator[None]:
    """Replaces `ops` in the module of an optimizer of Keras while an update is traced."""
    module = sys.modules[kind.__module__]
    original, module.ops = module.ops, _RowOps()
    try:
        yield
    finally:
        module.ops = original
