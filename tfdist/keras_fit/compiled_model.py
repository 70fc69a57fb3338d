"""What `compile()` made of a Keras model, and how Keras calls the model: the private names that this needs."""

import inspect
from typing import Any

import keras


def call(model: keras.Model, x: Any, *, training: bool) -> Any:
    """Returns the predictions for `x` (nested tensors [batch, ...]); passes `training` to a model that takes it."""
    takes_training = "training" in inspect.signature(model.call).parameters
    return model(x, training=training) if takes_training else model(x)


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


def given_losses(model: keras.Model) -> list[Any]:
    """Returns the losses that `compile()` was given."""
    return [] if losses(model) is None else keras.tree.flatten(losses(model)._user_loss)


def given_loss_weights(model: keras.Model) -> Any:
    """Returns the loss_weights that `compile()` was given, nested; None without a loss."""
    return None if losses(model) is None else losses(model)._user_loss_weights


def in_order(model: keras.Model, logs: dict[str, float]) -> Any:
    """Returns values by name as `Model.evaluate` does: a list in the order of the metrics, or one number."""
    names: list[str] = []
    for metric in model.metrics:
        names += [one.name for one in metric.metrics] if metric is metrics(model) else [metric.name]
    names = [*filter(logs.__contains__, names), *sorted(logs.keys() - set(names))]
    return [logs[name] for name in names] if len(names) != 1 else logs[names[0]]
