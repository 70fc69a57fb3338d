"""Updates of Keras' SGD, Adam and AdamW by TensorFlow's fused kernels.

Keras 3 makes the update of a weight from a handful of elementary operations, each of which reads and writes memory by
itself. The kernels here compute the same formulas in one pass: weights and slots are Keras' own up to rounding; their
names, the optimizer's class and its configuration stay.
"""

import functools

import keras
import tensorflow as tf


def fuse(optimizer: keras.optimizers.Optimizer) -> None:
    """Gives Keras' own SGD with momentum, Adam (without amsgrad) and AdamW the fused update; leaves others alone."""
    kind = type(optimizer)
    if kind is keras.optimizers.SGD and optimizer.momentum:
        update = _momentum
    elif kind in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad:
        update = _adam
    else:
        return
    # On the object, not in a subclass: Keras writes the class into a saved model, and must find its own there.
    optimizer.update_step = functools.partial(_update_step, optimizer, update)


def _update_step(optimizer, update, gradient, variable, learning_rate):
    """Updates one weight and its slots; called by Keras, on each device."""
    if not isinstance(gradient, tf.Tensor):  # Of an embedding, say: some rows alone.
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
        return
    index = optimizer._get_variable_index(variable)
    dtype = variable.dtype
    update(optimizer, index, variable.handle, tf.cast(gradient, dtype), tf.cast(learning_rate, dtype), dtype)


def _momentum(optimizer, index, variable, gradient, learning_rate, dtype):
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable,
        accum=optimizer.momentums[index].value.handle,
        lr=learning_rate,
        grad=gradient,
        momentum=tf.constant(optimizer.momentum, dtype),
        use_nesterov=optimizer.nesterov,
    )


def _adam(optimizer, index, variable, gradient, learning_rate, dtype):
    steps = tf.cast(optimizer.iterations.value + 1, dtype)
    beta1, beta2 = tf.constant(optimizer.beta_1, dtype), tf.constant(optimizer.beta_2, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=tf.pow(beta1, steps),
        beta2_power=tf.pow(beta2, steps),
        lr=learning_rate,
        beta1=beta1,
        beta2=beta2,
        epsilon=tf.constant(optimizer.epsilon, dtype),
        grad=gradient,
    )
