"""One training step and one evaluation step on one replica. The core of tfdist.

Forward and backward on the replica's shard, one all-reduce of the gradients, one update of the optimizer.
"""

import functools
from typing import Any

import tensorflow as tf

from tfdist.training.step import gradients as gradients_lib
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import seed_generators
from tfdist.training.step.tables import sparse_gradients


def train_step(context: StepContext, shard: Any) -> tf.Tensor:
    """Makes one optimizer step on this replica's shard of the global batch; called in `strategy.run`.

    Returns:
        float64 [len(names) + 1]: the sums of this replica's values, and its number of examples.
    """
    optimizer_lib.check_trainable(context.model)
    statistics = [tf.convert_to_tensor(statistic.value) for statistic in context.statistics]
    loss_scale = 1.0 if context.loss_scale is None else context.loss_scale.value

    sums, gradients, weight = context.objective.forward_backward(shard, loss_scale)
    gradients, flags = gradients_lib.sum_over_replicas(
        gradients,
        nonfinite_flags(context, sums),
        list(zip(context.statistics, statistics, strict=True)),
        weight,
        num_replicas=context.cluster.num_replicas,
        options=context.communication_options,
        communication=context.communication,
        clock=context.clock,
    )
    skipped = update(context, gradients, flags, statistics)
    add_to_totals(context, sums, skipped)
    return after_update(context, sums)


def evaluation_step(context: StepContext, *element: Any) -> tf.Tensor:
    """Adds this replica's shard of an evaluation batch to the totals; called in `strategy.run`."""
    seed_generators.begin_evaluation_pass()
    sums = context.objective.evaluate(*element)
    add_to_totals(context, sums, None)
    return sums


def apply(context: StepContext, gradients: gradients_lib.Gradients) -> None:
    """Applies summed gradients, clipped if `config.train.clip_norm` is set; called in `strategy.run`."""
    with sparse_gradients.convert_in_fixed_order():
        context.optimizer.apply(context.clip(gradients), context.model.trainable_variables)
    if context.loss_scale is not None:
        context.loss_scale.update(finite=True)


def nonfinite_flags(context: StepContext, sums: tf.Tensor) -> list[tf.Tensor]:
    """Returns [1.0] if this replica's loss is non-finite, else [0.0]; [] if such steps are not skipped.

    Summed with the gradients, the flag lets all replicas decide identically.
    """
    if not context.skips_nonfinite:
        return []
    return [tf.where(tf.math.is_finite(sums[context.names.index("loss")]), 0.0, 1.0)]


def update(
    context: StepContext, gradients: gradients_lib.Gradients, flags: list[tf.Tensor], statistics: list[tf.Tensor]
) -> tf.Tensor | None:
    """Applies summed gradients, or only counts the step if its loss or gradients are non-finite.

    Args:
        gradients: summed over replicas, times the loss scale.
        flags: the result of `nonfinite_flags`, summed over replicas.
        statistics: the values of `context.statistics` before the step.

    Returns:
        bool []: whether the step counts as skipped; None if steps are never skipped. An overflow of scaled gradients
        does not count, because a smaller scale prevents it.
    """
    if not context.skips_nonfinite and context.loss_scale is None:
        apply(context, gradients)
        return None
    bad_loss = flags[0] > 0 if flags else tf.constant(False)
    scale = None if context.loss_scale is None else tf.convert_to_tensor(context.loss_scale.value)
    if scale is not None:
        gradients = gradients_lib.scale(gradients, 1 / scale)
    finite = gradients_lib.all_finite(gradients) & ~bad_loss

    def skip() -> None:
        # Schedule, dropout and reports depend on the step.
        optimizer_lib.step_count(context.optimizer).assign_add(1)
        if context.loss_scale is not None:
            context.loss_scale.update(finite=False)

    gradients_lib.cond(finite, functools.partial(apply, context, gradients), skip)
    for statistic, old in zip(context.statistics, statistics, strict=True):
        statistic.assign(tf.where(finite, statistic.value, old))
    return ~finite if scale is None else bad_loss | (~finite & (scale <= 1.0))


def add_to_totals(context: StepContext, sums: tf.Tensor, skipped: tf.Tensor | None) -> None:
    """Adds a step's sums (float64 [len(names) + 1]) to the totals, unless it was `skipped` (bool [])."""
    counts = tf.zeros([2], tf.float64)
    if skipped is not None:
        sums = tf.where(skipped, tf.zeros_like(sums), sums)
        skipped_before = context.totals_layout.get(tf.identity(context.totals), "skipped") > 0
        clean = ~(skipped | skipped_before)
        counts = tf.cast(tf.stack([skipped, clean]), tf.float64) / context.cluster.num_replicas
    context.totals.assign_add(tf.concat([sums, counts], axis=0))


def after_update(context: StepContext, sums: tf.Tensor) -> tf.Tensor:
    """Returns `sums`, available once the update is done: the first layer's weights are updated last."""
    with tf.control_dependencies([tf.convert_to_tensor(context.model.trainable_variables[0].value)]):
        return tf.identity(sums)
