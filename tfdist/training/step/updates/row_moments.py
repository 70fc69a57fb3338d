"""Row moments: the sums over the lookups in each row of a table, and the sums of their squares.

Most optimizers of Keras square the row of each lookup, so the sum of an embedding's rows is not enough. They use
nothing else of the rows but these two sums (`by_lookup`). Both have the size of the table, whatever the number of
lookups is: collectives need shapes that are fixed when the step is traced, and a table may have fewer rows than a batch
has lookups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from tfdist.training.step import sparse_gradients


class RowMoments(NamedTuple):
    """The gradient of a table, for an optimizer that `can_update` accepts."""

    # The sum of the rows of all lookups, and that of their squares, in a fixed order: [rows, ...].
    sums: tf.Tensor
    squares: tf.Tensor


Gradient = sparse_gradients.Gradient | RowMoments


# Optimizers of Keras that row moments can update. Older releases do not have all of them.
_SQUARING = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Ftrl", "Lamb", "Muon", "Nadam", "RMSprop")
_SQUARING += ("ScheduleFreeAdamW",)
_LINEAR = ("Lion", "SGD")


def can_update(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether the update of `optimizer` is a function of row moments."""
    return _is_one_of(optimizer, _SQUARING + _LINEAR)


def usable_by(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` needs row moments, and does not accumulate, scale or clip single values before."""
    return (
        (_is_one_of(optimizer, _SQUARING) or (_is_one_of(optimizer, _LINEAR) and clips_by_norm(optimizer)))
        and optimizer.gradient_accumulation_steps is None
        and optimizer.loss_scale_factor is None
        and optimizer.clipvalue is None
    )


def sums_differ_from_keras(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` gets only the sums of rows if the number of lookups is unknown, unlike in Keras."""
    clips = clips_by_norm(optimizer) or optimizer.clipvalue is not None
    linear = isinstance(optimizer, keras.optimizers.SGD) or _is_one_of(optimizer, _LINEAR)
    # Keras itself sums rows to accumulate them, and cannot divide them by a scale.
    summed = optimizer.gradient_accumulation_steps is not None or optimizer.loss_scale_factor is not None
    return not (summed or usable_by(optimizer) or (linear and not clips))


def clips_by_norm(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` clips gradients by a norm, which is over the rows of all lookups."""
    return optimizer.clipnorm is not None or optimizer.global_clipnorm is not None


def _is_one_of(optimizer: keras.optimizers.Optimizer, names: Sequence[str]) -> bool:
    """Returns whether `optimizer` is exactly of one of these classes: a subclass may compute anything."""
    return type(optimizer) in [getattr(keras.optimizers, name, None) for name in names]


def of_rows(gradient: tf.IndexedSlices) -> RowMoments:
    """Returns the moments of the rows of all lookups, added in the order of the lookups."""
    squares = tf.IndexedSlices(tf.square(gradient.values), gradient.indices, gradient.dense_shape)
    return RowMoments(sparse_gradients.sum_rows(gradient), sparse_gradients.sum_rows(squares))


def to_send(
    gradients: Sequence[sparse_gradients.Gradient | None], *, moments: bool, num_replicas: int
) -> list[Gradient | None]:
    """Chooses how each sparse gradient is sent: row by row, or as moments or the sum, which have the table's size.

    Args:
        gradients: of one replica's shard; None for a variable without a gradient.
        moments: whether row moments are enough for the optimizer; see `usable_by`.
        num_replicas: of all workers.

    Returns:
        The gradients. Moments are sent if that is less than the rows of all lookups; or if the number of lookups is
        not known before the step runs, in which case the sum is sent if moments are not enough.
    """

    def choose(gradient: sparse_gradients.Gradient | None) -> Gradient | None:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        lookups, shape = gradient.indices.shape[0], tf.get_static_value(gradient.dense_shape)
        if lookups is None:
            return of_rows(gradient) if moments else sparse_gradients.sum_rows(gradient)
        # XLA compiles a part of the step; the shape of its results is not known outside of it.
        smaller = shape is not None and 2 * shape[0] < lookups * num_replicas
        return of_rows(gradient) if moments and smaller else gradient

    return [choose(gradient) for gradient in gradients]


def scale(gradients: Sequence[Gradient | None], factor: tf.Tensor | float) -> list[Gradient | None]:
    """Multiplies gradients by `factor`, a number or float []; None stays None."""

    def scaled(gradient: Gradient | None) -> Gradient | None:
        if gradient is None:
            return None
        if isinstance(gradient, RowMoments):
            own = tf.cast(factor, gradient.sums.dtype)
            return RowMoments(gradient.sums * own, gradient.squares * tf.square(own))
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                gradient.values * tf.cast(factor, gradient.values.dtype), gradient.indices, gradient.dense_shape
            )
        return gradient * tf.cast(factor, gradient.dtype)

    return [scaled(gradient) for gradient in gradients]


def half_square(gradient: Gradient) -> tf.Tensor:
    """Returns half the sum of the squares of a gradient's numbers, of its dtype: []; as `tf.nn.l2_loss`."""
    if isinstance(gradient, RowMoments):
        return tf.reduce_sum(gradient.squares) / 2
    return tf.nn.l2_loss(sparse_gradients.values(gradient))


def sums(gradient: Gradient) -> sparse_gradients.Gradient:
    """Returns a gradient without its squares: one that is sparse stays so."""
    return gradient.sums if isinstance(gradient, RowMoments) else gradient
