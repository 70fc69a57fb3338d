"""The update of a step is a chain of stages, listed in `make_update`.

As in optax, each stage transforms the gradients. Here a stage also receives the rest of the chain, and calls it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.training.step import collectives
from tfdist.training.step.updates import tables, work_sharing
from tfdist.training.step.updates.all_reduce import AllReduce
from tfdist.training.step.updates.loss_scale import LossScale
from tfdist.training.step.updates.tables import Gradients


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInput:
    """What a stage receives: gradients, loss and flags of one step."""

    # Gradients of this replica's shard, times the loss scale; after `reduce_gradients`, of the global batch.
    gradients: Gradients
    # float64 []: the sum of the losses of this replica's shard.
    loss: tf.Tensor
    # A number or float64 []: this shard's fraction of the examples; 1 in total over all replicas.
    weight: tf.Tensor | float
    # The moving statistics, with their values before the step, which a skipped step restores.
    statistics: Sequence[tuple[keras.Variable, tf.Tensor]]
    # float32 [] each: summed over replicas together with the gradients, such as the flag of `flag_nonfinite_loss`.
    flags: Sequence[tf.Tensor] = ()


# The rest of the chain after a stage. Returns whether the step is skipped, bool []; None if steps are never skipped.
NextStage = Callable[[UpdateInput], tf.Tensor | None]
# A stage changes its input, and calls the rest of the chain with the result.
Stage = Callable[[NextStage, UpdateInput], tf.Tensor | None]
Apply = Callable[[Gradients], None]


def make_apply(
    config: config_lib.Train, cluster: Cluster, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Apply:
    """Returns the end of the chain: clips the summed gradients, if `config.clip_norm` is set, and applies them."""
    clip_gradients = make_clip(config.clip_norm, cluster)

    def apply(gradients: Gradients) -> None:
        if gradients and all(gradient is None for gradient in gradients):
            raise ValueError(
                f"The loss of config.objective has no gradient for any of the {len(gradients)} trainable variables of "
                "the model: it does not depend on them, or there is a tf.stop_gradient, tf.numpy_function, "
                "tf.py_function, integer or bool between them and the loss."
            )
        with tables.convert_in_fixed_order():
            optimizer.apply(clip_gradients(gradients), model.trainable_variables)

    return apply


def make_update(
    apply: Apply,
    reduce_stage: Stage,
    *,
    skips_nonfinite: bool,
    loss_scale: LossScale | None,
    step_count: keras.Variable,
) -> NextStage:
    """Returns the update of a step: flag_nonfinite_loss(reduce_gradients(unscale(skip_nonfinite(apply)))).

    Only the stages that the run needs are in it. It is called in `strategy.run`.

    Args:
        apply: see `make_apply`.
        reduce_stage: the stage that sums the gradients over replicas, such as partial(reduce_gradients, reduction).
        skips_nonfinite: whether a step whose loss or gradients are non-finite is skipped.
        step_count: int64 [], which `apply` increments.
    """
    scales = loss_scale is not None
    stages = [
        *([flag_nonfinite_loss] if skips_nonfinite else []),
        reduce_stage,
        *([functools.partial(unscale, loss_scale)] if scales else []),
        *([functools.partial(skip_nonfinite, step_count, loss_scale)] if skips_nonfinite or scales else []),
    ]

    def apply_gradients(update: UpdateInput) -> None:
        # Keras' optimizer does not sum them again: see `optimizer.accept_summed_gradients`.
        apply(update.gradients)

    next_stage: NextStage = apply_gradients
    for stage in reversed(stages):
        next_stage = functools.partial(stage, next_stage)
    return next_stage


def flag_nonfinite_loss(next_stage: NextStage, update: UpdateInput) -> tf.Tensor | None:
    """Adds a flag, 1 if this replica's loss is non-finite, else 0: all replicas then decide by the same sum."""
    flag = tf.where(tf.math.is_finite(update.loss), 0.0, 1.0)
    return next_stage(dataclasses.replace(update, flags=[*update.flags, flag]))


def reduce_gradients(reduction: AllReduce, next_stage: NextStage, update: UpdateInput) -> tf.Tensor | None:
    """Sums gradients and flags over all replicas, and averages the moving statistics."""
    gradients, flags = reduction(update.gradients, list(update.flags), update.statistics, update.weight)
    return next_stage(dataclasses.replace(update, gradients=gradients, flags=flags))


def unscale(loss_scale: LossScale, next_stage: NextStage, update: UpdateInput) -> tf.Tensor | None:
    """Divides the gradients by the loss scale."""
    factor = 1 / tf.convert_to_tensor(loss_scale.value)
    return next_stage(dataclasses.replace(update, gradients=scale(update.gradients, factor)))


def skip_nonfinite(
    step_count: keras.Variable, loss_scale: LossScale | None, next_stage: NextStage, update: UpdateInput
) -> tf.Tensor:
    """Applies the update if loss and gradients are finite; else only counts the step.

    Returns:
        bool []: whether the step counts as skipped. An overflow that a smaller loss scale prevents does not count.
    """
    bad_loss = update.flags[0] > 0 if update.flags else tf.constant(False)  # See `flag_nonfinite_loss`.
    before = None if loss_scale is None else tf.convert_to_tensor(loss_scale.value)
    finite = all_finite(update.gradients) & ~bad_loss

    def apply_update() -> None:
        next_stage(update)
        if loss_scale is not None:
            loss_scale.update(finite=True)

    def skip() -> None:
        step_count.assign_add(1)  # Schedule, dropout and reports depend on the step.
        if loss_scale is not None:
            loss_scale.update(finite=False)

    collectives.cond_on_all_replicas(finite, apply_update, skip)
    for statistic, old in update.statistics:
        statistic.assign(tf.where(finite, statistic.value, old))
    return ~finite if before is None else bad_loss | (~finite & (before <= 1.0))


def scale(gradients: Gradients, factor: tf.Tensor | float) -> Gradients:
    """Multiplies gradients by `factor`, a number or float []; None stays None."""

    def multiply(gradient: tables.Gradient | None) -> tables.Gradient | None:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(multiply(gradient.values), gradient.indices, gradient.dense_shape)
        return None if gradient is None else gradient * tables.as_dtype(factor, gradient.dtype)

    return [multiply(gradient) for gradient in gradients]


def all_finite(gradients: Gradients) -> tf.Tensor:
    """Returns whether all summed gradients are finite: bool [], the same on every replica."""
    # A sum is non-finite as soon as one term is: one reduction per tensor is enough.
    present = [tables.values(one) for one in gradients if one is not None]
    dtype = tf.float64 if any(values.dtype == tf.float64 for values in present) else tf.float32
    sums = [tf.reduce_sum(tf.abs(tf.cast(values, dtype))) for values in present]
    return tf.reduce_all(tf.math.is_finite(tf.stack(sums or [tf.zeros([])])))


def make_clip(norm: float | None, cluster: Cluster) -> Callable[[Gradients], Gradients]:
    """Returns the function that clips gradients to the global L2 norm `norm`; None: it returns them unchanged.

    The rounding of a norm depends on the number of threads, which may differ between workers. So with several workers,
    only one replica computes the norm of a tensor, and all use its value.
    """
    if norm is None:
        return lambda gradients: gradients
    sharing = work_sharing.WorkSharing(num_replicas=cluster.num_replicas) if cluster.num_workers > 1 else None
    return functools.partial(clip, norm=norm, sharing=sharing)


def clip(gradients: Gradients, norm: float, sharing: work_sharing.WorkSharing | None = None) -> Gradients:
    """Scales gradients so that their global L2 norm is at most `norm` (arXiv 1211.5063).

    As in Keras' `global_clipnorm`, the norm is over the rows of all lookups. All gradients become dense.

    Args:
        sharing: computes the norm of each tensor on one replica; None: all norms are computed on this one.
    """
    numbers = [tables.values(gradient) for gradient in gradients if gradient is not None]
    common = _common_dtype(numbers)
    if sharing is None:
        halves = [tf.cast(tf.nn.l2_loss(values), common) for values in numbers]
    else:
        tasks = [lambda values=values: tf.reshape(tf.nn.l2_loss(values), [1]) for values in numbers]
        costs = [values.shape.num_elements() or 1 for values in numbers]
        halves = sharing.run_tasks(tasks, [1] * len(tasks), costs, common)
    own_norm = tf.sqrt(2.0 * tf.reduce_sum(tf.stack(halves)))
    clipped = list(gradients)
    for dtype in dict.fromkeys(values.dtype for values in numbers):
        chosen = [index for index, one in enumerate(gradients) if one is not None and one.dtype == dtype]
        scaled, _ = tf.clip_by_global_norm([gradients[index] for index in chosen], norm, tf.cast(own_norm, dtype))
        for index, one in zip(chosen, scaled, strict=True):
            clipped[index] = tables.sum_rows(one)
    return clipped


def _common_dtype(tensors: Sequence[tf.Tensor]) -> tf.DType:
    """Returns the dtype in which tensors can be summed: theirs; if they differ, float64 if one has it, else float32."""
    dtypes = {one.dtype for one in tensors}
    return dtypes.pop() if len(dtypes) == 1 else tf.float64 if tf.float64 in dtypes else tf.float32
