"""One training step and one evaluation step on one replica. The core of tfdist.

Forward and backward on the replica's shard, one all-reduce of the gradients, one update of the optimizer.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import seed_generators
from tfdist.training.step.updates.stages import UpdateInput


def train_step(context: StepContext, shard: Any) -> tf.Tensor:
    """Makes one optimizer step on this replica's shard of the global batch; called in `strategy.run`.

    Returns:
        float64 [len(names) + 1]: the sums of the objective's values over this replica's examples, and the number of
        these examples.
    """
    check_trainable(context.model)
    before_step = [(statistic, tf.convert_to_tensor(statistic.value)) for statistic in context.statistics]
    loss_scale = 1.0 if context.loss_scale is None else context.loss_scale.value

    sums, gradients, weight = context.objective.forward_backward(shard, loss_scale)
    loss = sums[context.names.index("loss")]
    update = context.make_update()  # The chain of stages that `stages.make_update` lists.
    skipped = update(UpdateInput(gradients=gradients, loss=loss, weight=weight, statistics=before_step))
    add_to_totals(context, sums, skipped)
    return after_update(context, sums)


def evaluation_step(context: StepContext, *shard: Any) -> tf.Tensor:
    """Adds this replica's shard of an evaluation batch to the totals; called in `strategy.run`."""
    seed_generators.begin_evaluation_pass()
    sums = context.objective.evaluate(*shard)
    add_to_totals(context, sums, None)
    return sums


def add_to_totals(context: StepContext, sums: tf.Tensor, skipped: tf.Tensor | None) -> None:
    """Adds a step's sums (float64 [len(names) + 1]) to the totals, unless it was `skipped` (bool [])."""
    counts = tf.zeros([2], tf.float64)
    if skipped is not None:
        sums = tf.where(skipped, tf.zeros_like(sums), sums)
        skipped_before = tf.identity(context.totals)[context.names_of_totals.index("skipped")] > 0
        before_skip = ~(skipped | skipped_before)
        # Every replica counts the step, so each adds 1/N.
        counts = tf.cast(tf.stack([skipped, before_skip]), tf.float64) / context.cluster.num_replicas
    context.totals.assign_add(tf.concat([sums, counts], axis=0))


def after_update(context: StepContext, sums: tf.Tensor) -> tf.Tensor:
    """Returns `sums` after the update: they wait for the first variable, which is updated last."""
    first = context.model.trainable_variables[:1]  # Empty if a script's step has a frozen model.
    with tf.control_dependencies([tf.convert_to_tensor(variable.value) for variable in first]):
        return tf.identity(sums)


def check_trainable(model: keras.Model) -> None:
    """Raises ValueError if a model has no trainable weights."""
    if not model.trainable_variables:
        raise ValueError(
            f"The model {model.name!r} has no weights to train: all {len(model.weights)} are frozen. "
            "Set `trainable` of a layer to True."
        )
