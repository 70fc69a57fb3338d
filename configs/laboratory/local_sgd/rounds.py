"""The round of local SGD, which replaces the step of a run."""

import dataclasses
import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import specs
from tfdist.data.feed import Batch
from tfdist.training.run import Run
from tfdist.training.step import train_step
from tfdist.training.step.context import StepContext
from tfdist.training.step.layers import normalization
from tfdist.training.step.updates import stages


@dataclasses.dataclass(frozen=True, slots=True)
class Rounds:
    """Counts rounds, in place of the optimizer's step count, on which random numbers depend.

    Within a round, random numbers differ by the index of the part.
    """

    optimizer_steps: keras.Variable
    local_steps: int

    @property
    def value(self) -> tf.Tensor:
        """The rounds so far, int64 []."""
        return self.optimizer_steps.value // self.local_steps


def train_round(local_steps: int, context: StepContext, shard: Batch) -> tf.Tensor:
    """Like `train_step.train_step`, with one optimizer step for each of `local_steps` parts of this replica's shard."""
    train_step.check_trainable(context.model)
    replicas = context.cluster.num_replicas
    # The loss is divided by the examples of one part over all replicas. So its gradient is multiplied by `replicas`
    # below, which makes it the gradient of the mean over this replica's examples.
    objective = dataclasses.replace(context.objective, global_batch=context.objective.global_batch // local_steps)
    updated = (*context.model.trainable_variables, *context.optimizer.variables)
    averaged = [variable for variable in updated if keras.backend.is_float_dtype(variable.dtype)]
    before = [tf.identity(variable.value) for variable in averaged]
    statistics = [(statistic, tf.identity(statistic.value)) for statistic in context.statistics]
    parts = {name: tf.reshape(value, [local_steps, -1, *value.shape[1:]]) for name, value in shard.items()}
    sums = tf.zeros([len(context.names) + 1], tf.float64)
    # A Python loop: an optimizer update inside a graph's loop is rejected on mirrored replicas.
    for index in range(local_steps):
        part = {name: value[index] for name, value in parts.items()}
        new_sums, gradients = objective.micro_batch(part, tf.constant(index), 1.0)
        context.apply(stages.scale(gradients, replicas))
        sums += new_sums
    if replicas > 1:
        changes = [(variable.value - old) / replicas for variable, old in zip(averaged, before, strict=True)]
        changes, _ = context.reduction(changes, [], statistics, 1 / replicas)
        for variable, old, change in zip(averaged, before, changes, strict=True):
            variable.assign(old + change)
    train_step.add_to_totals(context, sums, None)
    return train_step.after_update(context, sums)


def compose(run: Run, local_steps: int) -> Run:
    """Returns the run with rounds of `local_steps` optimizer steps in place of steps.

    Raises:
        ValueError: the batch cannot be divided in this way, or local SGD does not support an option of the config.
    """
    train, batch, replicas = run.config.train, run.config.data.batch_size, run.cluster.num_replicas
    part, rest = divmod(batch, replicas * local_steps)
    if rest or part % normalization.group_size(run.context.model):
        raise ValueError(
            f"config.data.batch_size={batch} must be a multiple of {replicas} replicas x --local_steps={local_steps}, "
            "and each part a multiple of the group_size of the model's normalisation."
        )
    summed = (train.micro_batches > 1, train.clip_norm, train.nonfinite != "stop", train.precision == "float16")
    if any(summed) or run.train_step is not train_step.train_step or hasattr(run.context.optimizer, "work_sharing"):
        raise ValueError(
            'local SGD needs train.micro_batches=1, clip_norm=None, nonfinite="stop", virtual_replicas=None, a '
            "precision other than float16, and an optimizer other than Muon, which shares its work between replicas."
        )
    context = dataclasses.replace(run.context, step_count=Rounds(run.context.step_count, local_steps))
    return dataclasses.replace(run, context=context, train_step=functools.partial(train_round, local_steps))


def schedule(peak: float, *, total_steps: int, warmup_steps: int, of: dict[str, Any], local_steps: int) -> Any:
    """Returns the schedule of the spec `of`, counted in optimizer steps: a step of the run has `local_steps`."""
    steps = {"total_steps": local_steps * total_steps, "warmup_steps": local_steps * warmup_steps}
    return specs.build(of, peak, field="config.learning_rate.schedule.of", **steps)
