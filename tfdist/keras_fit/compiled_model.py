"""What `compile()` made of a Keras model, and how Keras calls the model: the private names that this needs."""

import inspect
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_fit.whole_batch import coupling, reductions
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.rows import Rows


def overrides(model: keras.Model, name: str) -> bool:
    """Returns whether the class of the model, or the model itself, has a method of its own in place of Keras'."""
    method = getattr(model, name)
    return getattr(method, "__func__", method) is not getattr(keras.Model, name)


def call(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Returns the predictions for `x` (nested tensors [batch, ...]); passes `training` to a model that takes it."""
    takes_training = "training" in inspect.signature(model.call).parameters
    return model(x, training=training) if takes_training else model(x)


def call_with_losses(model: keras.Model, x: Any, rows: Rows, *, training: bool) -> tuple[Any, list[tf.Tensor]]:
    """Returns the predictions, and the losses of `add_loss` and of regularizers.

    The mean of a number of `add_loss` over the replicas, weighted by examples, is that of one device.
    """
    with rows_lib.current(rows):
        predictions = call(model, x, training=training)
    losses = model.losses
    coupling.warn_of_layers((predictions, losses), rows)
    coupling.warn_of_added_losses(losses, rows)
    return predictions, [loss if loss.shape.rank else reductions.share_value(loss, rows) for loss in losses]


def call_by_xla(model: keras.Model, x: Any, rows: Rows, *, training: bool) -> tuple[Any, list[tf.Tensor]]:
    """Returns what `call_with_losses` returns, compiled by XLA; so are the gradients of it."""
    masked: list[bool] = []

    @tf.function(jit_compile=True, autograph=False)
    def compiled(x: Any) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
        predictions, added = call_with_losses(model, x, rows, training=training)
        masks = [rows_lib.mask_of(one) for one in tf.nest.flatten(predictions)]
        masked[:] = [mask is not None for mask in masks]
        return predictions, added, [mask for mask in masks if mask is not None]

    predictions, added, masks = compiled(x)
    flat = tf.nest.flatten(predictions)
    for one, mask in zip([one for one, has in zip(flat, masked, strict=True) if has], masks, strict=True):
        rows_lib.with_mask(one, mask)
    return tf.nest.pack_sequence_as(predictions, flat), added


def compute_loss(model: keras.Model, x: Any, y: Any, predictions: Any, sample_weight: Any, *, training: bool) -> Any:
    """Returns the result of the model's `compute_loss`; passes `training` to one that takes it."""
    takes_training = "training" in inspect.signature(model.compute_loss).parameters
    return model.compute_loss(x, y, predictions, sample_weight, **({"training": training} if takes_training else {}))


def losses(model: keras.Model) -> Any:
    """Returns the callable (y, predictions, sample_weight) -> loss, float []; None without a loss."""
    return model._compile_loss


def trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics of the losses of single outputs; [] for one output."""
    return [] if losses(model) is None else losses(model).metrics


def metrics(model: keras.Model) -> Any:
    """Returns Keras' metric that updates those that `compile()` was given; None without any."""
    return model._compile_metrics


def compile_losses(model: keras.Model) -> list[Any]:
    """Returns the losses that `compile()` was given."""
    return [] if losses(model) is None else keras.tree.flatten(losses(model)._user_loss)


def compile_loss_weights(model: keras.Model) -> Any:
    """Returns the loss_weights that `compile()` was given, nested; None without a loss."""
    return None if losses(model) is None else losses(model)._user_loss_weights


def in_order(model: keras.Model, logs: dict[str, float]) -> Any:
    """Returns values by name as `Model.evaluate` does: a list in the order of the metrics, or one number."""
    names: list[str] = []
    for metric in model.metrics:
        names += [one.name for one in metric.metrics] if metric is metrics(model) else [metric.name]
    names = [*filter(logs.__contains__, names), *sorted(logs.keys() - set(names))]
    return [logs[name] for name in names] if len(names) != 1 else logs[names[0]]


def flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns nested results of metrics by name as Keras' logs have them: with the inner names only."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= flat(value) if isinstance(value, dict) else {name: value}
    return found


def as_keras(value: Any) -> Any:
    """Returns a metric's result as Keras keeps it: a float, or an array of one value per class."""
    array = value.numpy() if isinstance(value, tf.Tensor) else keras.ops.convert_to_numpy(value)  # Also bfloat16.
    return float(array) if array.ndim == 0 else array
