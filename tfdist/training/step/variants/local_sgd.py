"""Local SGD: each replica makes several optimizer steps by itself, then all average (Stich, arXiv 1805.09767).

For slow networks: one communication for `config.train.local_steps` optimizer steps. This is a different algorithm from
summing gradients in every step, so N replicas do not make the run of one. A run still repeats, resumes, and is the same
for any distribution of its replicas over workers.
"""

import dataclasses

import keras
import tensorflow as tf

from tfdist.data.feed import Batch
from tfdist.training.step import train_step
from tfdist.training.step.context import StepContext
from tfdist.training.step.updates import stages


def train_round(context: StepContext, shard: Batch) -> tf.Tensor:
    """Like `train_step.train_step`, with one optimizer step for each of `local_steps` parts of this replica's shard.

    Weights, the optimizer's slots and moving statistics are averaged at the end, so that all replicas are equal when
    the loop saves or evaluates.
    """
    train_step.check_trainable(context.model)
    rounds, replicas = context.config.train.local_steps, context.cluster.num_replicas
    # The loss is divided by the examples of one part over all replicas. Times `replicas`, its gradient is that of this
    # replica's own mean.
    objective = dataclasses.replace(context.objective, global_batch=context.objective.global_batch // rounds)
    updated = (*context.model.trainable_variables, *context.optimizer.variables)
    averaged = [variable for variable in updated if keras.backend.is_float_dtype(variable.dtype)]
    before = [tf.identity(variable.value) for variable in averaged]
    statistics = [(statistic, tf.identity(statistic.value)) for statistic in context.statistics]
    parts = {name: tf.reshape(value, [rounds, -1, *value.shape[1:]]) for name, value in shard.items()}
    sums = tf.zeros([len(context.names) + 1], tf.float64)
    # A Python loop: an optimizer update inside a graph's loop is rejected on mirrored replicas.
    for index in range(rounds):
        part = {name: value[index] for name, value in parts.items()}
        new_sums, gradients = objective.micro_batch(part, tf.constant(index), 1.0, local_step=index)
        context.apply(stages.scale(gradients, replicas))
        sums += new_sums
    if replicas > 1:
        changes = [(variable.value - old) / replicas for variable, old in zip(averaged, before, strict=True)]
        changes, _ = context.reduction(changes, [], statistics, 1 / replicas)
        for variable, old, change in zip(averaged, before, changes, strict=True):
            variable.assign(old + change)
    train_step.add_to_totals(context, sums, None)
    return train_step.after_update(context, sums)
