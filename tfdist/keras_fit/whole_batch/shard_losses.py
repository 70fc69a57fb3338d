"""Keras' losses over shards of a batch: what `fit` patches in Keras, and removes again.

A loss that is known to be a mean over examples is computed as the shard's part of the global loss. Keras divides it by
the examples of a replica and by the number of replicas, which is wrong if shards or masks differ in size. Every other
loss is computed by its own code on the whole batch, gathered from all replicas.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config.patching import patch, put, restore_after, set_in_block
from tfdist.keras_fit import compiled_model, messages
from tfdist.keras_fit.whole_batch.per_example import is_per_example
from tfdist.keras_fit.whole_batch.rows import Rows, draw_alike


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardLosses:
    """How the losses of a replica's shard are computed."""

    rows: Rows
    # Whether losses are means over the shard, as in a step of the model's own, and not parts of the global loss.
    means: bool = False

    def reduce(
        self, values: tf.Tensor, sample_weight: Any, mask: tf.Tensor | None, reduction: str | None, dtype: str | None
    ) -> tf.Tensor:
        """Replaces `keras.src.losses.loss.reduce_weighted_values`: returns the shard's part of the global loss."""
        values = keras.ops.convert_to_tensor(values, dtype=dtype)
        weights = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction="sum")
        if weights is not None:
            values, weights = keras_loss.squeeze_or_expand_to_same_rank(values, tf.cast(weights, values.dtype))
            values = values * weights
        total, present = tf.reduce_sum(values), tf.cast(self.rows.present, values.dtype)
        if reduction == "sum":
            return total * present
        size = tf.cast(tf.size(values), values.dtype)
        if reduction == "mean_with_sample_weight" and weights is not None:
            divisor = self.rows.sum(tf.reduce_sum(weights) * present)
            return tf.math.divide_no_nan(total * present, divisor)
        if mask is not None:
            valid = self.rows.sum(tf.reduce_sum(tf.cast(mask, values.dtype)) * present)
            return tf.math.divide_no_nan(total * present * tf.cast(tf.size(mask), values.dtype) / size, valid)
        return total / size * tf.cast(self.rows.weight, values.dtype)


class _Mode(threading.local):
    """Settings of Keras' losses in this thread: the replicas of a process are traced in threads, in turn."""

    # Whether Keras' scaling by the number of replicas is turned off.
    alone: bool = False
    # Whose part of the global batch's loss is computed; None: the loss of the examples given.
    shard: ShardLosses | None = None
    # The same, for the reduction of the loss that is called now.
    reduced: ShardLosses | None = None
    # Collects the losses of single outputs; None: Keras' trackers receive them.
    parts: list[tf.Tensor] | None = None


_mode = _Mode()
# Nested uses of `patch_losses`.
_depth = 0


def mode(**values: Any) -> contextlib.AbstractContextManager[None]:
    """Computes Keras' losses with the given fields of `_Mode`."""
    return set_in_block(_mode, **values)


def losses_are_patched() -> bool:
    """Returns whether Keras' losses are patched now."""
    return _depth > 0


@contextlib.contextmanager
def patch_losses(model: keras.Model) -> Iterator[None]:
    """Patches Keras' loss functions, and removes the patches at the end, those on `model`'s trackers included."""
    global _depth
    replacements: dict[str, Callable[..., tf.Tensor]] = {
        "reduce_weighted_values": _reduce_weighted_values,
        "scale_loss_for_distribution": _scale,
        "unscale_loss_for_distribution": _scale,
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in replacements.items():
            stack.enter_context(patch(keras_loss, name, replacement))
        for owner in _callers(model):
            stack.enter_context(patch(owner, "__call__", _call))
        stack.enter_context(restore_after(compiled_model.trackers(model), ["update_state"]))
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1


def _callers(model: keras.Model) -> list[type]:
    """Returns the classes whose `__call__` computes a loss: Keras' own, and those that override it."""
    given = [type(loss) for loss in compiled_model.compile_losses(model) if isinstance(loss, keras.Loss)]
    own = {cls for kind in given for cls in kind.__mro__ if "__call__" in vars(cls) and issubclass(cls, keras.Loss)}
    return list({keras.Loss, *own})


def _call(
    original: Callable[..., tf.Tensor], loss: keras.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> tf.Tensor:
    """Computes the outermost loss for the global batch; losses that it calls are Keras' own."""
    shard = _mode.shard
    if shard is None:
        return original(loss, y_true, y_pred, sample_weight)
    if is_per_example(loss):
        if shard.means:
            _tell_if_compared(loss.name, y_pred, shard)
        with mode(shard=None, reduced=shard):
            result = original(loss, y_true, y_pred, sample_weight)
        shard.rows.losses.append(result)
        return result
    bytes_before = shard.rows.gathered_bytes()
    each = loss.reduction in (None, "none")
    given = shard.rows.gather_all((y_true, y_pred, sample_weight), each=each)
    _tell(loss.name, shard.rows.gathered_bytes() - bytes_before)
    with mode(shard=None), draw_alike():
        result = original(loss, *given)
    if each:
        result = shard.rows.take_rows(result)
    elif not shard.means:
        result *= tf.cast(shard.rows.weight, result.dtype)
    shard.rows.losses.append(result)
    return result


def _tell(name: str, number: int) -> None:
    """Says once which loss is gathered, and what that costs."""
    if number and replicas_lib.is_first():
        messages.say_once(
            f"every replica computes the loss {name!r} on the whole batch, and gathers {number:,} bytes a step for it. "
            "If it is a mean over examples, tfdist.per_example(loss) says so, and nothing is gathered.",
            key=f"shard_losses {name}",
        )


def _tell_if_compared(name: str, y_pred: Any, shard: ShardLosses) -> None:
    """Says once if a step's loss gets a value for each pair of examples: those of the replica."""
    shape = getattr(y_pred, "shape", ())
    rows = shape[0] if len(shape) > 1 else 0
    if rows != 0 and shape[1] == rows and shard.rows.replicas > 1 and replicas_lib.is_first():
        messages.say_once(
            f"the loss {name!r} in a train_step gets predictions of shape {tuple(shape)}. If it compares the examples "
            "of a batch, each replica compares its own only: tfdist.all_gather in the step gives it those of the whole "
            "batch (docs/own_step.md).",
            key=f"shard_losses {name}",
        )


def _reduce_weighted_values(
    original: Callable[..., tf.Tensor],
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: str | None = None,
) -> tf.Tensor:
    shard = _mode.reduced
    by_weight = reduction == "mean_with_sample_weight" and sample_weight is not None
    by_mask = mask is not None and reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight")
    if shard is None or (shard.means and not by_weight and not by_mask and reduction != "sum"):
        return original(values, sample_weight, mask, reduction, dtype)
    part = shard.reduce(values, sample_weight, mask, reduction, dtype)
    return tf.math.divide_no_nan(part, tf.cast(shard.rows.weight, part.dtype)) if shard.means else part


def _scale(original: Callable[..., tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    return value if _mode.alone else original(value)


def capture(tracker: keras.metrics.Metric) -> None:
    """Makes `tracker`, of an output's loss, add to `_Mode.parts` if that is set."""
    if "update_state" in vars(tracker):
        return
    original = tracker.update_state

    def update_state(value: tf.Tensor, sample_weight: Any = None) -> None:
        if _mode.parts is None:
            original(value, sample_weight)
        else:
            _mode.parts.append(value)

    put(tracker, "update_state", update_state)
