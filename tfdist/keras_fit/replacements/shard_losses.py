"""Keras' losses over shards of a batch: what `fit` patches in Keras, and removes again.

Keras divides a loss by the examples of a replica and by the number of replicas. That is wrong if shards or masks differ
in size. Within `patched_losses`, losses are computed as the shard's part of the loss of the global batch.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist.config.patching import put, replaced, restored
from tfdist.keras_fit import compiled_model
from tfdist.training import api as trainer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A replica's part of a batch."""

    # Its fraction of the batch's examples, float32 [].
    weight: tf.Tensor
    # 0.0 if the shard is empty, else 1.0: float32 [].
    present: tf.Tensor
    # Whether XLA compiles the loss: XLA cannot communicate.
    by_xla: bool
    # Whether losses are means over the shard, as in a step of the model's own, and not parts of the global loss.
    means: bool = False

    def reduce(
        self,
        values: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: str | None = None,
    ) -> tf.Tensor:
        """Replaces `keras.src.losses.loss.reduce_weighted_values`: returns the shard's part of the global loss."""
        values = keras.ops.convert_to_tensor(values, dtype=dtype)
        weights = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction="sum")
        if weights is not None:
            values, weights = keras_loss.squeeze_or_expand_to_same_rank(values, tf.cast(weights, values.dtype))
            values = values * weights
        total, present = tf.reduce_sum(values), tf.cast(self.present, values.dtype)
        if reduction == "sum":
            return total * present
        if values.shape.rank == 0:
            return total * tf.cast(self.weight, values.dtype)
        size = tf.cast(tf.size(values), values.dtype)
        if reduction == "mean_with_sample_weight" and weights is not None:
            divisor = self._over_replicas(tf.reduce_sum(weights) * present)
            return tf.math.divide_no_nan(total * present, divisor)
        if mask is not None:
            valid = self._over_replicas(tf.reduce_sum(tf.cast(mask, values.dtype)) * present)
            return tf.math.divide_no_nan(total * present * tf.cast(tf.size(mask), values.dtype) / size, valid)
        return total / size * tf.cast(self.weight, values.dtype)

    def _over_replicas(self, value: tf.Tensor) -> tf.Tensor:
        if self.by_xla and trainer.num_replicas() > 1:
            raise ValueError(
                "compile(jit_compile=True) is not supported with masks or mean_with_sample_weight on several replicas: "
                "their divisor is a sum over all replicas. Remove jit_compile."
            )
        return trainer.sum_differentiable(value)


class _Mode(threading.local):
    """Settings of Keras' losses in this thread: the replicas of a process are traced in threads, in turn."""

    # Whether Keras' scaling by the number of replicas is turned off.
    alone: bool = False
    # Whose part of the global batch's loss is computed; None: the loss of the examples given.
    shard: Shard | None = None
    # Collects the losses of single outputs; None: Keras' trackers receive them.
    parts: list[tf.Tensor] | None = None


_mode = _Mode()
# Nested uses of `patched_losses`.
_depth = 0


@contextlib.contextmanager
def mode(**values: Any) -> Iterator[None]:
    """Computes Keras' losses with the given fields of `_Mode`."""
    for name, value in values.items():
        setattr(_mode, name, value)
    try:
        yield
    finally:
        for name in values:
            delattr(_mode, name)


def patched() -> bool:
    """Returns whether Keras' losses are patched now."""
    return _depth > 0


@contextlib.contextmanager
def patched_losses(model: keras.Model) -> Iterator[None]:
    """Patches Keras' loss functions, and removes the patches at the end, those on `model`'s trackers included."""
    global _depth
    replacements: dict[str, Callable[..., tf.Tensor]] = {
        "reduce_weighted_values": _reduce_weighted_values,
        "scale_loss_for_distribution": _scale,
        "unscale_loss_for_distribution": _scale,
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in replacements.items():
            stack.enter_context(replaced(keras_loss, name, replacement))
        stack.enter_context(restored(compiled_model.trackers(model), ["update_state"]))
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1


def _reduce_weighted_values(
    original: Callable[..., tf.Tensor],
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: str | None = None,
) -> tf.Tensor:
    shard = _mode.shard
    by_weight = reduction == "mean_with_sample_weight" and sample_weight is not None
    by_mask = mask is not None and reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight")
    if shard is None or (shard.means and not by_weight and not by_mask):
        return original(values, sample_weight, mask, reduction, dtype)
    part = shard.reduce(values, sample_weight, mask, reduction, dtype)
    return tf.math.divide_no_nan(part, tf.cast(shard.weight, part.dtype)) if shard.means else part


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
