"""Objectives: loss and metrics with one value per example; tfdist computes the means over all replicas."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import specs


def classification(
    model: Any,
    batch: Mapping[str, tf.Tensor],
    *,
    training: bool,
    label_smoothing: float = 0.0,
    top5: bool = False,
    mirror: bool = False,
    shift: int = 0,
    inputs: str = "image",
    labels: str = "label",
) -> dict[str, tf.Tensor]:
    """Cross-entropy and accuracy of a classifier whose outputs are logits.

    Args:
        model: called as `model(batch[inputs], training=training)`; returns logits [n, classes].
        batch: holds `inputs` and `labels`: class numbers, integers [n], or distributions over the classes, floats
            [n, classes], whose rows sum to 1 (mixup, distillation).
        training: True in a training step, False in evaluation.
        label_smoothing: the fraction of each label's weight that is spread evenly over all classes, in training only;
            evaluation reports the cross-entropy of the true labels.
        top5: add the metric "top5".
        mirror: in evaluation, average the logits of each image and its mirror image.
        shift: in evaluation, average the logits of the image (weight 1/2) and of the image shifted by this many pixels
            to the upper left and to the lower right (1/4 each), with reflected borders (arXiv 2404.00498, section
            3.5).
        inputs: the key of the model's inputs.
        labels: the key of the labels.

    Returns:
        float32 [n] each: "loss", the cross-entropy in nats; "accuracy", 1 where the largest logit is the label (of a
        distribution: its largest entry), else 0; and with `top5` "top5", 1 where the label is among the five largest.

    Raises:
        ValueError: while the step is traced: a key is missing, or shapes, dtypes or `label_smoothing` are not valid.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be within [0, 1). Received: {label_smoothing}")
    if training:
        logits = _outputs(model, batch, inputs, labels, training)
    else:
        _check_keys(batch, inputs)
        views = _views(batch, inputs, mirror, shift)
        logits = tf.add_n([w * _outputs(model, view, inputs, labels, training) for view, w in views])
    target = batch[labels]
    _check_classification(logits, target, labels)
    if top5 and logits.shape[-1] < 5:
        raise ValueError(f"top5 needs at least 5 classes. Received: logits of shape {logits.shape}")
    cross_entropy, answer = _cross_entropy(logits, target, label_smoothing if training else 0.0)
    values = {"loss": cross_entropy, "accuracy": tf.cast(tf.argmax(logits, -1) == answer, tf.float32)}
    if top5:
        best = tf.cast(tf.math.top_k(logits, 5, sorted=False).indices, tf.int64)
        values["top5"] = tf.cast(tf.reduce_any(best == answer[:, tf.newaxis], -1), tf.float32)
    return values


def _cross_entropy(logits: tf.Tensor, target: tf.Tensor, label_smoothing: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cross-entropy of each example, float32 [n], and the correct classes, int64 [n]."""
    if target.dtype.is_integer:
        answer = tf.cast(target, tf.int64)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(answer, logits)
    else:
        target = tf.cast(target, tf.float32)
        cross_entropy, answer = tf.nn.softmax_cross_entropy_with_logits(target, logits), tf.argmax(target, -1)
    if label_smoothing:
        even = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
        cross_entropy = (1.0 - label_smoothing) * cross_entropy + label_smoothing * even
    return cross_entropy, answer


def _views(
    batch: Mapping[str, tf.Tensor], inputs: str, mirror: bool, shift: int
) -> list[tuple[Mapping[str, tf.Tensor], float]]:
    """Returns the views of the batch for evaluation, and their weights."""
    views = [(batch, 1.0)]
    if shift:
        height, width = batch[inputs].shape[1:3]
        padded = tf.pad(batch[inputs], [[0, 0], [shift, shift], [shift, shift], [0, 0]], "REFLECT")
        moved = [padded[:, at : at + height, at : at + width] for at in (0, 2 * shift)]
        views = [(batch, 0.5), *(({**batch, inputs: images}, 0.25) for images in moved)]
    if mirror:
        views = [(view, weight / 2) for view, weight in views]
        views += [({**view, inputs: tf.reverse(view[inputs], axis=[2])}, weight) for view, weight in views]
    return views


def regression(
    model: Any,
    batch: Mapping[str, tf.Tensor],
    *,
    training: bool,
    loss: str = "mse",
    inputs: str = "inputs",
    targets: str = "targets",
) -> dict[str, tf.Tensor]:
    """Squared and absolute errors of a regression model.

    Args:
        model: called as `model(batch[inputs], training=training)`; returns numbers [n, ...].
        batch: holds `inputs` and `targets`: numbers of the outputs' shape; [n] is also accepted for outputs [n, 1].
        training: True in a training step, False in evaluation.
        loss: the error to minimise: "mse" or "mae".
        inputs: the key of the model's inputs.
        targets: the key of the targets.

    Returns:
        float32 [n] each: "loss"; "mse" and "mae", the mean squared and absolute error over all of an example's numbers.

    Raises:
        ValueError: while the step is traced: a key is missing, shapes differ, or `loss` is unknown.
    """
    if loss not in ("mse", "mae"):
        raise ValueError(f'loss must be "mse" or "mae". Received: {loss!r}')
    outputs = _outputs(model, batch, inputs, targets, training)
    target = tf.cast(batch[targets], tf.float32)
    # Otherwise [n, 1] - [n] would be broadcast to [n, n], and its mean would look plausible.
    if outputs.shape.rank == 2 and outputs.shape[-1] == 1 and target.shape.rank == 1:
        target = target[:, tf.newaxis]
    if outputs.shape.rank is None or outputs.shape.rank != target.shape.rank or outputs.shape[1:] != target.shape[1:]:
        raise ValueError(
            f"batch[{targets!r}] must have the shape of the model's outputs. "
            f"Received: targets {batch[targets].shape}, outputs {outputs.shape}"
        )
    error = outputs - target
    axes = list(range(1, error.shape.rank))
    values = {"mse": tf.reduce_mean(tf.square(error), axes), "mae": tf.reduce_mean(tf.abs(error), axes)}
    return {"loss": values[loss], **values}


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

    Whether the model returns logits or probabilities is said by `arguments`, as in Keras: `{"from_logits": True}`.

    Args:
        model: called as `model(batch[inputs], training=training)`; returns one tensor [n, ...].
        batch: holds `inputs` and `labels`.
        training: True in a training step, False in evaluation.
        loss: the name of a loss of `keras.losses`, such as "binary_crossentropy", "huber" or "BinaryCrossentropy".
        metrics: names of functions of `keras.metrics`, such as "mean_absolute_error", or "accuracy": binary,
            categorical or sparse, by the shapes of outputs and labels, as in Keras.
        arguments: keyword arguments of the loss.
        inputs: the key of the model's inputs.
        labels: the key of the labels or targets.

    Returns:
        float32 [n] each: "loss" and an entry per metric: the mean over all numbers of an example.

    Raises:
        ValueError: while the step is traced: a key is missing, a name or argument is unknown, or the loss has no value
            per example.
    """
    function = _loss(loss, arguments or {})
    outputs, targets = _outputs(model, batch, inputs, labels, training), batch[labels]
    values = {"loss": function(targets, outputs)}
    for name in metrics:
        values[name] = _metric(name, targets, outputs)(targets, outputs)
    return {name: _mean_per_example(name, value, outputs) for name, value in values.items()}


def _check_keys(batch, *keys):
    for key in keys:
        if key not in batch:
            raise ValueError(
                f"The objective reads batch[{key!r}], but the batch has: {', '.join(sorted(batch))}. Set the keys in "
                "config.objective."
            )


def _outputs(model, batch, inputs, labels, training):
    _check_keys(batch, inputs, labels)
    outputs = model(batch[inputs], training=training)
    if not tf.is_tensor(outputs):
        raise ValueError(
            "This objective needs a model with one output. Received: a "
            f"{type(outputs).__name__}. Set config.objective.target to another objective."
        )
    return tf.cast(outputs, tf.float32)


def _check_classification(logits, target, labels):
    if logits.shape.rank != 2 or logits.shape[-1] is None:
        raise ValueError(f"The model must return logits of shape [n, classes]. Received: {logits.shape}")
    if target.dtype.is_integer:
        fits, expected = target.shape.rank == 1, "integer labels need the shape [n]"
    else:
        fits = target.dtype.is_floating and target.shape.rank == 2 and target.shape[-1] == logits.shape[-1]
        expected = (
            f"labels must be integers [n] or distributions [n, {logits.shape[-1]}], floats, as the model's logits"
        )
    if not fits:
        raise ValueError(
            f"batch[{labels!r}]: {expected}. Received: labels {target.shape} {target.dtype.name}, logits {logits.shape}"
        )


def _loss(name: str, arguments: Mapping[str, Any]) -> keras.losses.Loss:
    classes = {
        key: value
        for key, value in vars(keras.losses).items()
        if isinstance(value, type) and issubclass(value, keras.losses.Loss) and value is not keras.losses.Loss
    }
    # "mean_squared_error" and "MeanSquaredError" name the same loss.
    plain = {key.lower(): value for key, value in classes.items()}
    loss = plain.get(name.replace("_", "").lower())
    if loss is None:
        known = sorted(classes)
        raise ValueError(
            f"config.objective.loss: keras.losses has no {name!r}.{specs.nearest(name, known)} All: {', '.join(known)}"
        )
    try:
        return loss(**arguments, reduction="none")
    except TypeError as error:
        raise ValueError(f"config.objective.arguments={dict(arguments)} for the loss {name!r}: {error}") from None


def _metric(name: str, targets: tf.Tensor, outputs: tf.Tensor) -> Any:
    if name in ("accuracy", "acc"):
        name = _accuracy(targets, outputs)
    functions = {
        key: value
        for key, value in vars(keras.metrics).items()
        if callable(value) and not isinstance(value, type) and key not in ("get", "serialize", "deserialize")
    }
    if name not in functions:
        known = sorted(functions)
        raise ValueError(
            f"config.objective.metrics: keras.metrics has no function {name!r}.{specs.nearest(name, known)} "
            f"All: accuracy, {', '.join(known)}"
        )
    return functions[name]


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
