"""Replicas that compute wrongly, for tests of audits: bits are flipped in the numbers of one replica's computation.

`PLAN` says which: a test sets it, or a config gives its values to `objective`.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfdist.cluster.devices import replicas
from tfdist.zoo import objectives, prepare

# place: "image" (what the first kernel reads), "loss" (a result), "gradient" (the start of the backward pass), "weight"
# (the memory of the device) or "" (no fault). replica: the faulty one. step: the first faulty one. bit: of the first
# element. times: number of faults; a repeated computation sees one again if any are left.
PLAN = {"place": "", "replica": 1, "step": 1, "bit": 22, "times": 1}
# How often it has happened.
HAPPENED = [0]


def plant(**plan: int | str) -> None:
    """Sets `PLAN`, and counts anew how often the fault happens."""
    PLAN.update(plan)
    HAPPENED[0] = 0


def with_step(batch, seeds, *, training, batch_size: int, steps_per_epoch: int, **image):
    """Prepares images in the order of the source, and adds the number of the step that they are for."""
    epoch = tf.bitwise.bitwise_and(seeds[:, 0], 2**32 - 1)
    step = epoch * steps_per_epoch + seeds[:, 1] // batch_size + 1
    return prepare.image(batch, seeds, training=training, **image) | {"step": step}


def objective(model, batch, *, training, **plan) -> Mapping[str, tf.Tensor]:
    """Classification, with the fault that is planted."""
    PLAN.update(plan)
    if not training:
        return objectives.classification(model, batch, training=training)
    step, values = batch["step"][0], dict(batch)
    kernel = model.trainable_variables[0].value
    bits = _flipped(tf.convert_to_tensor(kernel), "weight", step)
    tf.raw_ops.AssignVariableOp(resource=kernel.handle, value=bits)
    values["image"] = _flipped(values["image"], "image", step)
    found = dict(objectives.classification(model, values, training=training))

    @tf.custom_gradient
    def passed(loss):
        return _flipped(loss, "loss", step), lambda upstream: _flipped(upstream, "gradient", step)

    return found | {"loss": passed(found["loss"])}


def _flipped(value: tf.Tensor, place: str, step: tf.Tensor) -> tf.Tensor:
    """Returns float32 `value` with the bits of its first element that the plan flips here and now."""
    mask = tf.numpy_function(lambda *now: _mask(place, *now), [replicas.replica_id(), step], tf.int32)
    flat = tf.bitcast(tf.reshape(value, [-1]), tf.int32)
    masks = tf.one_hot(0, tf.size(flat), on_value=tf.ensure_shape(mask, []), off_value=0)
    return tf.reshape(tf.bitcast(tf.bitwise.bitwise_xor(flat, masks), value.dtype), tf.shape(value))


def _mask(place: str, replica: np.ndarray, step: np.ndarray) -> np.ndarray:
    here = place == PLAN["place"] and replica == PLAN["replica"] and step >= PLAN["step"]
    if not here or HAPPENED[0] >= PLAN["times"]:
        return np.int32(0)
    HAPPENED[0] += 1
    return np.array(1 << PLAN["bit"], np.uint32).view(np.int32)[()]
