"""The updates of Keras' optimizers in fewer operations, with the same results up to rounding.

Keras 3 updates a weight by several elementary operations, and each reads and writes memory. The fused kernels of
TensorFlow compute the same formulas in one pass. For weights that decay, Keras also computes the schedule of the
learning rate once more per weight. The optimizer's class, its configuration and its variables' names do not change.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.updates import tables


def fuse(optimizer: keras.optimizers.Optimizer) -> Callable[[], None]:
    """Makes Keras' SGD with momentum, and Adam and AdamW without amsgrad, use fused kernels.

    All optimizers add the rows of sparse gradients to variables in a fixed order.

    Returns:
        A function to call when `apply` begins: it clears what the weights shared in the previous call.
    """
    shared: dict[tuple[str, str], dict[str, tf.Tensor]] = {}
    kind = type(optimizer)
    present = vars(optimizer).get("update_step")
    own_update = present is not None and getattr(present, "func", None) is not _decay_and_update  # The user's.
    for name in ("assign_add", "assign_sub"):
        patching.replace_attribute(optimizer, name, functools.partial(_assign_tensor, optimizer, getattr(kind, name)))
    if own_update:
        return shared.clear
    if isinstance(optimizer, keras.optimizers.SGD):
        fused = _momentum if kind is keras.optimizers.SGD and optimizer.momentum else None
        update = functools.partial(_update_sgd, optimizer, fused)
    elif kind in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad:
        update = functools.partial(_update_adam, optimizer, shared)
    else:
        return shared.clear
    # On the object, not in a subclass: Keras writes the class into a saved model.
    patching.replace_attribute(optimizer, "update_step", functools.partial(_decay_and_update, optimizer, update))
    patching.replace_attribute(optimizer, "_apply_weight_decay", lambda variables: None)
    return shared.clear


def _decay_and_update(optimizer, update, gradient, variable, learning_rate):
    """Updates one weight with the learning rate that Keras computed for all; called by Keras on each device."""
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
        decay = tf.cast(optimizer.weight_decay, variable.dtype)
        variable.assign_sub(variable * decay * tf.cast(learning_rate, variable.dtype))
    update(gradient, variable, learning_rate)


def _assign_tensor(optimizer, assign, variable, value):
    """Adds to or subtracts from a variable; Keras would add the rows of lookups separately, in no fixed order."""
    assign(optimizer, variable, tables.sum_rows(value))


def _update_sgd(optimizer, fused, gradient, variable, learning_rate):
    """Updates one weight and its momentum."""
    gradient = tables.sum_rows(gradient)
    if fused is not None and _has_kernel(variable):
        fused(optimizer, gradient, variable, learning_rate)
    else:
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)


def _update_adam(optimizer, shared, gradient, variable, learning_rate):
    """Updates one weight and its slots; `shared`: (device, dtype) -> what the weights of this apply share."""
    if _has_kernel(variable) and not isinstance(gradient, tf.IndexedSlices):
        key = (variable.device, variable.dtype.name)
        if key not in shared:
            shared[key] = _shared_by_weights(optimizer, variable.dtype, learning_rate)
        _adam(optimizer, shared[key], gradient, variable)
    else:
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)


def _has_kernel(variable: tf.Variable) -> bool:
    return variable.dtype in ("float16", "float32", "float64")  # GPUs have kernels for these.


def _momentum(optimizer, gradient, variable, learning_rate):
    dtype = variable.dtype
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=optimizer.momentums[optimizer._get_variable_index(variable)].value.handle,
        lr=tf.cast(learning_rate, dtype),
        grad=tf.cast(gradient, dtype),
        momentum=tf.constant(optimizer.momentum, dtype),
        use_nesterov=optimizer.nesterov,
    )


def _adam(optimizer, shared, gradient, variable):
    index = optimizer._get_variable_index(variable)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        grad=tf.cast(gradient, variable.dtype),
        **shared,
    )


def _shared_by_weights(
    optimizer: keras.optimizers.Optimizer, dtype: tf.DType, learning_rate: Any
) -> dict[str, tf.Tensor]:
    """Returns the scalars of ResourceApplyAdam, all of `dtype` [], that give the same weights as Keras.

    The kernel computes 1 - beta_2 from the rounded beta_2: 0.00099998713 in float32 instead of 0.001. So its v is
    `found / expected` times that of Keras. To compensate, the learning rate and epsilon are multiplied by the square
    root of this ratio.
    """
    steps = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
    # Cast as Keras does: by way of float32.
    beta1, beta2 = tf.cast(optimizer.beta_1, dtype), tf.cast(optimizer.beta_2, dtype)
    rate, epsilon = tf.cast(learning_rate, dtype), tf.constant(optimizer.epsilon, dtype)
    own_type = dtype.as_numpy_dtype
    of_keras, of_kernel = own_type(1 - optimizer.beta_2), own_type(1) - own_type(optimizer.beta_2)
    if of_keras != of_kernel:
        logs = (tf.constant(math.log1p(-float(part)), tf.float32) for part in (of_keras, of_kernel))
        count = tf.cast(steps, tf.float32)
        expected, found = (tf.math.expm1(count * log) for log in logs)
        factor = tf.cast(tf.math.rsqrt(expected / found), dtype)
        rate, epsilon = rate * factor, epsilon * factor
    return {
        "beta1_power": tf.pow(beta1, steps),
        "beta2_power": tf.pow(beta2, steps),
        "lr": rate,
        "beta1": tf.constant(optimizer.beta_1, dtype),
        "beta2": tf.constant(optimizer.beta_2, dtype),
        "epsilon": epsilon,
    }
