"""The optimizer of a run: built from the config, checked, given summed gradients."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.config import patching, specs
from tfdist.training.step import learning_rate as learning_rate_lib

# The length of a schedule, as a multiple of the warm-up, if the run is not longer than the warm-up.
_TIMES_WARMUP = 10
_CLIPS = (
    "would clip each replica's gradients before they are summed: remove it and set config.train.clip_norm, which clips "
    "their sum."
)
# Argument of an optimizer -> why it is refused, and what to set.
_REFUSED = {
    **dict.fromkeys(("clipnorm", "global_clipnorm", "clipvalue"), _CLIPS),
    "gradient_accumulation_steps": "does not work in a compiled step: remove it and set config.train.micro_batches.",
    "loss_scale_factor": "would divide gradients of a loss that was not multiplied: remove it and set "
    'config.train.precision="float16", which does both.',
    "ema_overwrite_frequency": "does not work in a compiled step: remove it.",
}


def build_optimizer(config: config_lib.Config, steps_per_epoch: int, total_steps: int) -> keras.optimizers.Optimizer:
    """Makes the optimizer of a config with its schedule, the peak scaled to the global batch."""
    config = learning_rate_lib.resolve(config)
    rate = config.learning_rate
    peak = learning_rate_lib.peak(config)
    steps, _ = schedule_steps(rate, steps_per_epoch, total_steps)
    schedule = specs.build(rate.schedule, peak, field="config.learning_rate.schedule", **steps)
    optimizer = specs.build(config.optimizer, schedule, field="config.optimizer")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"config.optimizer.target must return a keras.optimizers.Optimizer. Received: {type(optimizer).__name__}"
        )
    return optimizer


def schedule_steps(rate: config_lib.LearningRate, steps_per_epoch: int, total_steps: int) -> tuple[dict[str, int], str]:
    """Returns the arguments of a schedule that count steps, and a notice if the warm-up is cut short.

    If a warm-up is longer than the run, it ends with the run, and its rates are unchanged. So a first trial with
    `--config.train.epochs=1` that is continued with more epochs equals the longer run bit for bit.
    """
    warmup = round(rate.warmup_epochs * steps_per_epoch)
    if warmup < total_steps:
        return {"total_steps": total_steps, "warmup_steps": warmup}, ""
    # The run does not reach the end of the warm-up: any longer schedule has the same rates.
    arguments = {"total_steps": _TIMES_WARMUP * warmup, "warmup_steps": warmup}
    if warmup == total_steps:
        return arguments, ""
    return arguments, (
        f"config.learning_rate.warmup_epochs={rate.warmup_epochs}: the warm-up is shortened from {warmup} steps to the "
        f"{total_steps} of the run. The rate increases as configured, to {total_steps / warmup:.2g} of its peak. "
        "If the run is continued with more epochs, so is the warm-up."
    )


def accept_summed_gradients(optimizer: keras.optimizers.Optimizer, begin_apply: Callable[[], None]) -> None:
    """Makes `optimizer.apply` accept gradients that are already summed.

    Keras clips on each replica, before it sums over replicas (an update of norm 0.97 for a clip norm of 0.5), and
    checks only replica 0 for overflows. With summed gradients its clipping is right. The method that sums them is
    replaced by one that returns its argument. Keras calls it once per `apply`, before it updates the first weight; so
    `begin_apply` is called there.
    """

    def return_unchanged(grads_and_vars: Any) -> Any:
        begin_apply()
        return grads_and_vars

    patching.replace_attribute(optimizer, "_all_reduce_sum_gradients", return_unchanged)


def step_count(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Returns the count of calls of `apply`; with `gradient_accumulation_steps`, `iterations` is a fraction of it."""
    return optimizer.variables[0]


def learning_rate(optimizer: keras.optimizers.Optimizer) -> float:
    """Returns the learning rate of the last step."""
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(optimizer.iterations - 1)
    elif callable(rate):
        rate = rate()
    return float(keras.ops.convert_to_numpy(rate))


def settable_learning_rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    """Returns the learning rate if callbacks may change it, which makes it a variable; None: a schedule computes it."""
    rate = optimizer._learning_rate
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


def resume_learning_rate(
    optimizer: keras.optimizers.Optimizer, configured: float | None, before: float | None
) -> tuple[float | None, str | None]:
    """Replaces a restored learning rate if the configured one has changed since the run was saved.

    Args:
        optimizer: as restored; callbacks may have changed its learning rate before it was saved.
        configured: the learning rate that is configured now; None: a schedule computes it.
        before: the learning rate that was configured when the run was saved; None: not known.

    Returns:
        The learning rate to save as the configured one; and a line for the log, or None.
    """
    restored = settable_learning_rate(optimizer)
    if configured is None:
        return None, None
    if restored == configured:
        return configured if before is None else before, None
    if before is None or before == configured:
        return configured, f"learning rate {restored:g}, from the checkpoint; {configured:g} is configured"
    optimizer.learning_rate = configured
    return configured, (
        f"learning rate {configured:g}, as configured now; {before:g} was configured before, and the checkpoint has "
        f"{restored:g}"
    )


def start_averages(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Starts the averages of an optimizer with `use_ema` from the weights that it trains, before the first step.

    Keras starts them in the first step. If that step is skipped, for example by loss scaling, they would start from 0.
    """
    if (
        getattr(optimizer, "use_ema", False)
        and optimizer.built
        and keras.ops.convert_to_numpy(optimizer.iterations) == 0
    ):
        averages = optimizer._model_variables_moving_average
        for average, variable in zip(averages, variables, strict=False):  # In pairs as in Keras.
            average.assign(variable)


def evaluates_averages(config: config_lib.Config, optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether the averages of an optimizer with `use_ema` are evaluated and exported instead of the weights."""
    # This callback of Keras swaps weights and averages itself.
    callback_swaps = any(spec["target"].endswith(":SwapEMAWeights") for spec in config.callbacks)
    return not callback_swaps and getattr(optimizer, "use_ema", False)


def evaluated_weights(
    config: config_lib.Config, cluster: Cluster, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Callable[[], AbstractContextManager]:
    """Returns the value of `Run.evaluated_weights`: a function that makes a context manager.

    In the context, `model` has the weights to evaluate and export: its own, or their averages.
    """
    if not evaluates_averages(config, optimizer):
        return contextlib.nullcontext
    return functools.partial(_use_averages, cluster, model, optimizer)


@contextlib.contextmanager
def _use_averages(cluster: Cluster, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Gives `model` the averages of an optimizer with `use_ema` within the context; needs a copy of the weights."""
    variables = [variable.value for variable in model.trainable_variables]
    before = [tf.identity(variable) for variable in variables]
    with cluster.scope():
        optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if an optimizer has one of the arguments in `_REFUSED`, or is a LossScaleOptimizer."""
    for name, reason in _REFUSED.items():
        value = getattr(optimizer, name, None)
        if value is not None:
            raise ValueError(f"config.optimizer.{name}={value} {reason}")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "config.optimizer names a LossScaleOptimizer, which checks replica 0's gradients only: name the inner "
            'optimizer and set config.train.precision="float16", which scales the loss on all.'
        )
