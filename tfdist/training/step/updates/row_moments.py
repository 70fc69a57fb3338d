"""Row moments: sums over the lookups in each row of a table, of functions of their rows.

Most optimizers of Keras square the row of each lookup, so the sum of an embedding's rows is not enough. They use
nothing else of the rows but two or three sums (`by_lookup`). These have the size of the table, whatever the number of
lookups is: collectives need shapes that are fixed when the step is traced, and a table may have fewer rows than a batch
has lookups.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.training.step import sparse_gradients


class RowMoments(NamedTuple):
    """The gradient of a table: sums over the lookups in each of its rows, in a fixed order. Each is [rows, ...].

    Squares and magnitudes are None if the optimizer does not need them.
    """

    # Of the rows of the lookups, of their squares, and of their absolute values.
    sums: tf.Tensor
    squares: tf.Tensor | None = None
    magnitudes: tf.Tensor | None = None


Gradient = sparse_gradients.Gradient | RowMoments

# Optimizers of Keras that row moments can update -> the moments that the update uses. Older releases do not have all
# of them.
_SUMS = ("sums",)
_SQUARING = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Ftrl", "Lamb", "Muon", "Nadam", "RMSprop")
_USED = {
    **dict.fromkeys((*_SQUARING, "ScheduleFreeAdamW"), ("sums", "squares")),
    **dict.fromkeys(("Lion", "SGD"), _SUMS),
    "Adamax": ("sums", "magnitudes"),
}

_FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "sums": tf.identity,
    "squares": tf.square,
    "magnitudes": tf.abs,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The row moments that an optimizer gets instead of rows."""

    # Names of fields of `RowMoments`; empty: rows are sent, or only their sum.
    moments: tuple[str, ...] = ()
    # Each number of a row is clipped to [-clipvalue, clipvalue] before it is summed: float []; None: it is not.
    clipvalue: tf.Tensor | float | None = None
    # Whether numbers that are not finite stay so: such steps are skipped.
    keep_nonfinite: bool = False

    def scaled(self, loss_scale: tf.Tensor | float) -> "Needs":
        """Returns the same for gradients of the loss times `loss_scale`, float []."""
        if self.clipvalue is None:
            return self
        return dataclasses.replace(self, clipvalue=self.clipvalue * loss_scale)

    def of_rows(self, gradient: tf.IndexedSlices) -> RowMoments:
        """Returns the moments of the rows of all lookups, added in the order of the lookups."""
        rows = gradient.values
        if self.clipvalue is not None:
            limit = tf.cast(self.clipvalue, rows.dtype)
            clipped = tf.clip_by_value(rows, -limit, limit)
            rows = tf.where(tf.math.is_finite(rows), clipped, rows) if self.keep_nonfinite else clipped
        parts = {
            name: tf.IndexedSlices(_FUNCTIONS[name](rows), gradient.indices, gradient.dense_shape)
            for name in self.moments
        }
        return RowMoments(**{name: sparse_gradients.sum_rows(part) for name, part in parts.items()})


def used_by(optimizer: keras.optimizers.Optimizer) -> tuple[str, ...]:
    """Returns the moments that the update of `optimizer` uses; empty unless its class is one of Keras' own.

    A subclass may compute anything.
    """
    kinds = {getattr(keras.optimizers, name, None): moments for name, moments in _USED.items()}
    return kinds.get(type(optimizer), ())


def needed_by(optimizer: keras.optimizers.Optimizer, *, clips: bool = False, skips_nonfinite: bool = False) -> Needs:
    """Returns the moments that `optimizer` needs instead of rows.

    None for an optimizer that sums rows itself, to accumulate them; that divides rows by a loss scale; or for which the
    sum of rows is enough.

    Args:
        clips: whether the run clips gradients to a norm before it passes them to the optimizer.
        skips_nonfinite: whether the run skips steps with gradients that are not finite.
    """
    used = used_by(optimizer)
    if not used or optimizer.gradient_accumulation_steps is not None or optimizer.loss_scale_factor is not None:
        return Needs()
    if clips_by_norm(optimizer) or (clips and used != _SUMS):
        return Needs(moments=tuple(dict.fromkeys((*used, "squares"))))
    clipvalue = None if clips else _positive(optimizer.clipvalue)
    if clipvalue is None and used == _SUMS:
        return Needs()
    return Needs(moments=used, clipvalue=clipvalue, keep_nonfinite=skips_nonfinite)


def sums_differ_from_keras(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` gets only the sums of rows if the number of lookups is unknown, unlike in Keras."""
    linear = isinstance(optimizer, keras.optimizers.SGD) or used_by(optimizer) == _SUMS
    # Keras itself sums rows to accumulate them, and cannot divide them by a scale.
    summed = optimizer.gradient_accumulation_steps is not None or optimizer.loss_scale_factor is not None
    return not (summed or needed_by(optimizer).moments or (linear and not clips(optimizer)))


def clips_by_norm(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` clips gradients by a norm, which is over the rows of all lookups."""
    return any(_positive(norm) is not None for norm in (optimizer.clipnorm, optimizer.global_clipnorm))


def clips(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether `optimizer` clips gradients, by a norm or by value."""
    return clips_by_norm(optimizer) or _positive(optimizer.clipvalue) is not None


def _positive(limit: float | None) -> float | None:
    """Returns a limit of clipping; None for 0 too, with which Keras does not clip."""
    return limit if limit is not None and limit > 0 else None


def to_send(
    gradients: Sequence[sparse_gradients.Gradient | None], *, needs: Needs, num_replicas: int
) -> list[Gradient | None]:
    """Chooses how each sparse gradient is sent: row by row, or as moments or the sum, which have the table's size.

    Args:
        gradients: of one replica's shard; None for a variable without a gradient.
        needs: of the optimizer; see `needed_by`.
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
            return needs.of_rows(gradient) if needs.moments else sparse_gradients.sum_rows(gradient)
        # XLA compiles a part of the step; the shape of its results is not known outside of it.
        smaller = shape is not None and len(needs.moments) * shape[0] < lookups * num_replicas
        return needs.of_rows(gradient) if needs.moments and smaller else gradient

    return [choose(gradient) for gradient in gradients]


def further(gradient: Gradient | None) -> list[tf.Tensor]:
    """Returns the moments of a gradient besides the sums; empty if it is none of `RowMoments`."""
    return [part for part in gradient[1:] if part is not None] if isinstance(gradient, RowMoments) else []


def rebuilt(gradient: Gradient | None, sums: sparse_gradients.Gradient | None, parts: Iterator[tf.Tensor]) -> Any:
    """Returns a gradient like `gradient`, with other sums, and with the next of `parts` for `further`."""
    if not isinstance(gradient, RowMoments):
        return sums
    return RowMoments(sums, *(None if part is None else next(parts) for part in gradient[1:]))


def scale(gradients: Sequence[Gradient | None], factor: tf.Tensor | float) -> list[Gradient | None]:
    """Multiplies gradients by `factor`, a number or float []; None stays None."""

    def scaled(gradient: Gradient | None) -> Gradient | None:
        if gradient is None:
            return None
        if isinstance(gradient, RowMoments):
            own = tf.cast(factor, gradient.sums.dtype)
            return mapped(gradient, lambda part: part * own)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                gradient.values * tf.cast(factor, gradient.values.dtype), gradient.indices, gradient.dense_shape
            )
        return gradient * tf.cast(factor, gradient.dtype)

    return [scaled(gradient) for gradient in gradients]


def mapped(moments: RowMoments, linear: Callable[[Any], tf.Tensor]) -> RowMoments:
    """Returns the moments after a function that multiplies each row by the same factor."""
    sums, squares, magnitudes = moments
    return RowMoments(
        linear(sums),
        None if squares is None else linear(linear(squares)),  # Twice: each square has the factor's square.
        None if magnitudes is None else tf.abs(linear(magnitudes)),
    )


def half_square(gradient: Gradient) -> tf.Tensor:
    """Returns half the sum of the squares of a gradient's numbers, of its dtype: []; as `tf.nn.l2_loss`."""
    if isinstance(gradient, RowMoments):
        return tf.reduce_sum(gradient.squares) / 2
    return tf.nn.l2_loss(sparse_gradients.values(gradient))


def sums(gradient: Gradient) -> sparse_gradients.Gradient:
    """Returns a gradient without the other moments: one that is sparse stays so."""
    return gradient.sums if isinstance(gradient, RowMoments) else gradient
