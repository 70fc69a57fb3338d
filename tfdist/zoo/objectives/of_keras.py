"""The losses and metrics of Keras by name, with one value per example."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import specs
from tfdist.zoo.objectives import outputs as outputs_lib


def keras_loss(
    model: Any,
    batch: Mapping[str, tf.Tensor],
    *,
    training: bool,
    loss: str,
    metrics: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    inputs: str = "image",
    labels: str = "label",
) -> dict[str, tf.Tensor]:
    """A loss and metrics by the names that `Model.compile` accepts.

    A cross-entropy of a model that ends in a softmax (binary: in a sigmoid) is computed from the logits before it. For
    any other model, `arguments` must say whether it returns logits, {"from_logits": True}, or probabilities, False.

    Args:
        model: called as `model(batch[inputs], training=training)`; returns one tensor [n, ...].
        training: True in a training step, False in evaluation.
        loss: the name of a loss of `keras.losses`, such as "binary_crossentropy", "huber", "BinaryCrossentropy" or
            "mse".
        metrics: names of functions of `keras.metrics`, such as "mean_absolute_error", or "accuracy": binary,
            categorical or sparse, by the shapes of outputs and labels, as in Keras. With a cross-entropy they get
            probabilities, also from a model that returns logits.
        inputs: the key of the model's inputs.
        labels: the key of the labels or targets.

    Returns:
        float32 [n] each: "loss" and an entry per metric: the mean over all numbers of an example.

    Raises:
        ValueError: while the step is traced: a key is missing, a name or argument is unknown, the loss has no value
            per example, or it is not known whether the outputs are probabilities.
    """
    kind, arguments = _loss_class(loss), dict(arguments or {})
    outputs_lib.check_keys(batch, inputs, labels)
    targets = batch[labels]
    if "from_logits" in inspect.signature(kind).parameters:
        found = outputs_lib.compute(model, batch[inputs], training=training)
        predicted, outputs, from_logits = _of_cross_entropy(model, kind, loss, found, arguments.get("from_logits"))
        arguments["from_logits"] = from_logits
    else:
        predicted = outputs = outputs_lib.call(model, batch[inputs], training=training)
    values = {"loss": _make(kind, loss, arguments)(targets, predicted)}
    if outputs.shape[-1] == 1 and targets.shape.rank == outputs.shape.rank - 1:
        targets = targets[..., tf.newaxis]  # As Keras' losses do.
    for name in metrics:
        function = _metric(name, targets, outputs)
        if arguments.get("from_logits") and "from_logits" in inspect.signature(function).parameters:
            values[name] = function(targets, predicted, from_logits=True)
        else:
            values[name] = function(targets, outputs)
    return {name: _mean_per_example(name, value, outputs) for name, value in values.items()}


def _of_cross_entropy(
    model: Any, kind: type, name: str, found: outputs_lib.Outputs, given: bool | None
) -> tuple[tf.Tensor, tf.Tensor, bool]:
    """Returns what loss and metrics get, and `from_logits`; `given`: that of the config, None: not set."""
    binary = kind.__name__.startswith("Binary")
    expected, probabilities = ("sigmoid", tf.sigmoid) if binary else ("softmax", tf.nn.softmax)
    if found.activation == expected:
        return found.logits, found.values, True
    if given is None or (given and found.activation):
        ends = f"ends in a {found.activation}" if found.activation else f"does not end in a {expected}"
        raise ValueError(
            f"The loss {name!r} is for a {expected}, and the model {ends} ({outputs_lib.last_layer(model)}): set "
            'config.objective["arguments"] to {"from_logits": True} if it returns logits, or to {"from_logits": False} '
            f"if it returns probabilities. Received: {given}"
        )
    if given:
        return found.values, probabilities(found.values), True
    # A new tensor: Keras would take the logits of any activation from this one.
    values = tf.identity(found.values)
    return values, values, False


def _loss_class(name: str) -> type[keras.losses.Loss]:
    classes = {key: value for key, value in vars(keras.losses).items() if isinstance(value, type) and key != "Loss"}
    # "mean_squared_error" and "MeanSquaredError" name the same loss.
    plain = {key.lower(): value for key, value in classes.items()}
    loss = plain.get(_long_name(name).replace("_", "").lower())
    if loss is None:
        raise ValueError(f"config.objective.loss: keras.losses has no {name!r}.{specs.nearest(name, sorted(classes))}")
    return loss


def _long_name(name: str) -> str:
    """Returns the full name of a loss or metric: "mean_squared_error" for "mse"."""
    try:
        return getattr(keras.losses.get(name), "__name__", name)
    except ValueError:  # Keras has no loss of this name.
        return name


def _make(kind: type[keras.losses.Loss], name: str, arguments: Mapping[str, Any]) -> keras.losses.Loss:
    try:
        return kind(**arguments, reduction="none")
    except TypeError as error:
        raise ValueError(f"config.objective.arguments={dict(arguments)} for the loss {name!r}: {error}") from None


def _metric(name: str, targets: tf.Tensor, outputs: tf.Tensor) -> Any:
    if name in ("accuracy", "acc"):
        name = _accuracy(targets, outputs)
    functions = {key: value for key, value in vars(keras.metrics).items() if inspect.isfunction(value)}
    found = functions.get(name) or functions.get(_long_name(name))
    if found is None:
        hint = specs.nearest(name, ["accuracy", *sorted(functions)])
        raise ValueError(f"config.objective.metrics: keras.metrics has no function {name!r}.{hint}")
    return found


def _accuracy(targets: tf.Tensor, outputs: tf.Tensor) -> str:
    """Returns the accuracy that Keras chooses for these shapes."""
    if outputs.shape[-1] == 1:
        return "binary_accuracy"
    one_hot = targets.shape.rank == outputs.shape.rank and targets.shape[-1] == outputs.shape[-1]
    return "categorical_accuracy" if one_hot else "sparse_categorical_accuracy"


def _mean_per_example(name: str, value: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    value = tf.cast(value, tf.float32)
    if value.shape.rank == 0 or value.shape[0] != outputs.shape[0]:
        raise ValueError(
            f"{name!r} has no value per example: shape {value.shape} for outputs {outputs.shape}. "
            "Train with tfdist.fit."
        )
    return tf.reduce_mean(value, list(range(1, value.shape.rank)))
