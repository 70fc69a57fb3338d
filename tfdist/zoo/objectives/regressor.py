"""Squared and absolute errors."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.zoo.objectives import outputs as outputs_lib


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
    outputs_lib.check_keys(batch, inputs, targets)
    outputs = outputs_lib.call(model, batch[inputs], training=training)
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
