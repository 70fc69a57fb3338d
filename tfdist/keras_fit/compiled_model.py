"""What `compile()` has stored in a Keras model, and the form of Keras' results. Uses private names of Keras."""

from typing import Any

import keras
import tensorflow as tf


def overrides(model: keras.Model, name: str) -> bool:
    """Returns whether the model, or its class, overrides the method `name` of `keras.Model`."""
    method = getattr(model, name)
    return getattr(method, "__func__", method) is not getattr(keras.Model, name)


def losses(model: keras.Model) -> Any:
    """Returns the callable (y, predictions, sample_weight) -> loss, float []; None without a loss."""
    return model._compile_loss


def metrics(model: keras.Model) -> Any:
    """Returns Keras' metric that updates the metrics given to `compile()`; None: none were given."""
    return model._compile_metrics


def compilation(model: keras.Model) -> Any:
    """Returns an object that every call of `compile()` makes anew; None before the first call."""
    return getattr(model, "_compile_config", None)


def compile_losses(model: keras.Model) -> list[Any]:
    """Returns the losses that `compile()` was given."""
    return [] if losses(model) is None else keras.tree.flatten(model.loss)


def loss_objects(model: keras.Model) -> list[keras.Loss]:
    """Returns the losses given to `compile()`, with names and functions converted to objects."""
    # By the outputs, Keras chooses one of its cross-entropies for these names; all are means over examples.
    chosen = {"crossentropy": "categorical_crossentropy", "ce": "categorical_crossentropy"}
    given = [one for one in compile_losses(model) if one is not None]
    return [keras.losses.get(chosen.get(one, one) if isinstance(one, str) else one) for one in given]


def compile_loss_weights(model: keras.Model) -> Any:
    """Returns the loss_weights that `compile()` was given, nested; None without a loss."""
    return None if losses(model) is None else losses(model)._user_loss_weights


def evaluation_result(model: keras.Model, logs: dict[str, float], return_dict: bool) -> Any:
    """Returns `logs` in the form of `Model.evaluate`: a dict, a list in the order of the metrics, or one number."""
    if return_dict:
        return dict(sorted(logs.items()))
    names: list[str] = []
    for metric in model.metrics:
        names += [one.name for one in metric.metrics] if metric is metrics(model) else [metric.name]
    names = [*filter(logs.__contains__, names), *sorted(logs.keys() - set(names))]
    return [logs[name] for name in names] if len(names) != 1 else logs[names[0]]


def flatten_results(logs: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested results of metrics as Keras does for its logs: only the inner names are kept."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= flatten_results(value) if isinstance(value, dict) else {name: value}
    return found


def to_log_value(value: Any) -> Any:
    """Returns a metric's result as Keras keeps it: a float, or an array of one value per class."""
    array = value.numpy() if isinstance(value, tf.Tensor) else keras.ops.convert_to_numpy(value)  # Also bfloat16.
    return float(array) if array.ndim == 0 else array
