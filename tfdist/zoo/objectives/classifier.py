"""Cross-entropy and accuracy of a classifier."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.zoo.objectives import outputs as outputs_lib


def classification(
    model: Any,
    batch: Mapping[str, tf.Tensor],
    *,
    training: bool,
    label_smoothing: float = 0.0,
    top5: bool = False,
    inputs: str = "image",
    labels: str = "label",
) -> dict[str, tf.Tensor]:
    """Cross-entropy and accuracy of a classifier whose outputs are logits, or end in a softmax.

    After a softmax the loss is computed from the logits that it was applied to.

    Args:
        model: called as `model(batch[inputs], training=training)`; returns logits or their softmax [n, classes].
        batch: holds `inputs` and `labels`: class numbers, integers [n].
        training: True in a training step, False in evaluation.
        label_smoothing: the fraction of each label's weight that is spread evenly over all classes, in training only;
            evaluation reports the cross-entropy of the true labels.
        inputs: the key of the model's inputs.
        labels: the key of the labels.

    Returns:
        float32 [n] each: "loss", the cross-entropy in nats; "accuracy", 1 where the largest logit is the label, else 0;
        and with `top5` "top5", 1 where the label is among the five largest.

    Raises:
        ValueError: while the step is traced: a key is missing; shapes, dtypes or `label_smoothing` are not valid; the
            outputs are probabilities of another kind.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be within [0, 1). Received: {label_smoothing}")
    outputs_lib.check_keys(batch, inputs, labels)
    found = outputs_lib.compute(model, batch[inputs], training=training)
    _check_outputs(model, found)
    logits = found.logits
    target = batch[labels]
    _check_classification(logits, target, labels)
    if top5 and logits.shape[-1] < 5:
        raise ValueError(f"top5 needs at least 5 classes. Received: logits of shape {logits.shape}")
    answer = tf.cast(target, tf.int64)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(answer, logits)
    if training and label_smoothing:
        even = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
        cross_entropy = (1.0 - label_smoothing) * cross_entropy + label_smoothing * even
    values = {"loss": cross_entropy, "accuracy": tf.cast(tf.argmax(logits, -1) == answer, tf.float32)}
    if top5:
        best = tf.cast(tf.math.top_k(logits, 5, sorted=False).indices, tf.int64)
        values["top5"] = tf.cast(tf.reduce_any(best == answer[:, tf.newaxis], -1), tf.float32)
    return values


def _check_outputs(model: Any, outputs: outputs_lib.Outputs) -> None:
    shape, layer = outputs.values.shape, outputs_lib.last_layer(model)
    if shape.rank == 2 and shape[-1] == 1:
        raise ValueError(
            f"The model has one output for an example, and this objective needs one for each class: give {layer} two "
            'outputs, or set config.objective to {"target": "tfdist.zoo.objectives:keras_loss", "loss": '
            '"binary_crossentropy", "metrics": ["accuracy"]}.'
        )
    if outputs.activation == "sigmoid":
        raise ValueError(
            f"{layer[0].upper()}{layer[1:]} returns the probabilities of a sigmoid, and this objective needs logits or "
            'a softmax: remove the activation, or set config.objective to {"target": '
            '"tfdist.zoo.objectives:keras_loss"} with a "loss" for them and "arguments": {"from_logits": False}.'
        )


def _check_classification(logits, target, labels):
    if logits.shape.rank != 2 or logits.shape[-1] is None:
        raise ValueError(f"The model must return logits of shape [n, classes]. Received: {logits.shape}")
    if not target.dtype.is_integer or target.shape.rank != 1:
        raise ValueError(
            f"batch[{labels!r}] must be class numbers, integers [n]. Received: {target.dtype.name} {target.shape}. For "
            'distributions over the classes set config.objective to {"target": "tfdist.zoo.objectives:keras_loss", '
            '"loss": "categorical_crossentropy", "metrics": ["accuracy"]}.'
        )
