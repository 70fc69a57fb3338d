"""Updates that are put together anew, as with another sum over replicas than `stages.sum_over_replicas`."""

import functools
from collections.abc import Callable

import tensorflow as tf

from tfdist.training.step.context import StepContext
from tfdist.training.step.updates import stages


def update_with(context: StepContext, add_up: Callable[..., tf.Tensor | None]) -> stages.Stage:
    """Returns the update of a step with `add_up` as the stage that sums gradients; see `stages.make_update`."""
    return stages.make_update(
        context.apply,
        add_up,
        skips_nonfinite=context.config.train.nonfinite != "stop",
        loss_scale=context.loss_scale,
        step_count=context.step_count,
    )


def sum_over_replicas(context: StepContext) -> Callable[..., tf.Tensor | None]:
    """Returns the stage that sums gradients in the usual way."""
    return functools.partial(stages.sum_over_replicas, context.reduction)
