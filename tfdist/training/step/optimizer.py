"""The optimizer of a run: built from the config, checked, given summed gradients, updated by fused kernels.

Keras 3 computes the update of a weight by several elementary operations, each of which reads and writes memory. The
fused kernels of TensorFlow compute the same formulas in one pass. Weights and slots are equal to Keras' up to rounding;
names, the optimizer's class and its configuration do not change.
"""

import functools

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import specs


def build_optimizer(config: config_lib.Config, steps_per_epoch: int, total_steps: int) -> keras.optimizers.Optimizer:
    """Makes the optimizer with its schedule, the peak scaled to the global batch (arXiv 1706.02677, section 2.1).

    Raises:
        ValueError: the warm-up is longer than the run, or the target returns no optimizer.
    """
    rate = config.learning_rate
    factor = config.data.batch_size / config.train.local_steps / rate.reference_batch_size
    peak = rate.peak * {"none": 1.0, "linear": factor, "sqrt": factor**0.5}[rate.scaling]
    warmup_steps = round(rate.warmup_epochs * steps_per_epoch)
    if warmup_steps > total_steps:
        raise ValueError(
            f"config.learning_rate.warmup_epochs={rate.warmup_epochs} are {warmup_steps} steps, more than the "
            f"{total_steps} of the run."
        )
    schedule = specs.build(
        rate.schedule, peak, field="config.learning_rate.schedule", total_steps=total_steps, warmup_steps=warmup_steps
    )
    optimizer = specs.build(config.optimizer, schedule, field="config.optimizer")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"config.optimizer.target must return a keras.optimizers.Optimizer. Received: {type(optimizer).__name__}"
        )
    return optimizer


def fuse(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes Keras' SGD with momentum, Adam (without amsgrad) and AdamW use fused kernels; others are not changed."""
    kind = type(optimizer)
    if kind is keras.optimizers.SGD and optimizer.momentum:
        update = _momentum
    elif kind in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad:
        update = _adam
    else:
        return
    # On the object, not in a subclass: Keras writes the class into a saved model.
    optimizer.update_step = functools.partial(_update_step, optimizer, update)


def _update_step(optimizer, update, gradient, variable, learning_rate):
    """Updates one weight and its slots; called by Keras on each device."""
    # Sparse gradients are some rows of an embedding, for example. GPUs have fused kernels for these dtypes only.
    if not isinstance(gradient, tf.Tensor) or variable.dtype not in ("float16", "float32", "float64"):
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


# The methods that `take_over_reduction` and `fuse` replace on an optimizer object.
PUT_ON_OPTIMIZERS = ("_all_reduce_sum_gradients", "update_step")


def take_over_reduction(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.apply` take gradients that are summed already.

    Keras clips before its own sum over replicas, on each replica separately (an update of norm 0.97 instead of 0.5),
    and checks replica 0 only for overflows. Given the sums, its clipping is right.
    """
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that the optimizer of a config does nothing for which the config has a field.

    Raises:
        ValueError: the optimizer clips, accumulates or scales by itself; says where to ask for it.
    """
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        if getattr(optimizer, name, None) is not None:
            raise ValueError(
                f"config.optimizer.{name}={getattr(optimizer, name)} would clip each replica's gradients before they "
                "are summed: remove it and set config.train.clip_norm, which clips their sum."
            )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            f"config.optimizer.gradient_accumulation_steps={optimizer.gradient_accumulation_steps} does not work in a "
            "compiled step: remove it and set config.train.micro_batches."
        )
    if getattr(optimizer, "loss_scale_factor", None):
        raise ValueError(
            f"config.optimizer.loss_scale_factor={optimizer.loss_scale_factor} would divide gradients of a loss that "
            'was not multiplied: remove it and set config.train.precision="float16", which does both.'
        )
    if getattr(optimizer, "ema_overwrite_frequency", None):
        raise ValueError(
            f"config.optimizer.ema_overwrite_frequency={optimizer.ema_overwrite_frequency} does not work in a "
            "compiled step: remove it."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "config.optimizer names a LossScaleOptimizer, which checks replica 0's gradients only: name the inner "
            'optimizer and set config.train.precision="float16", which scales the loss on all.'
        )


def check_trainable(model: keras.Model) -> None:
    """Checks that a model has something to train.

    Raises:
        ValueError: it has no trainable weights.
    """
    if not model.trainable_variables:
        raise ValueError(
            f"The model {model.name!r} has no weights to train: of its {len(model.weights)} all are frozen. "
            "Set `trainable` of a layer to True."
        )
