"""What happens to gradients between the backward pass and the optimizer: summed over replicas, scaled, clipped."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.training.step import timing
from tfdist.training.step.context import StepContext

Gradients = list[tf.Tensor | None]


def all_reduce(gradients: Gradients, options: config_lib.Communication) -> Gradients:
    """Sums every gradient over all replicas; to be called in `strategy.run`.

    Args:
        gradients: one tensor per variable, of any shapes; `None` where a variable has no gradient. Sparse gradients
            become dense.
        options: `dtype` is the type on the wire; the sums are handed back in the gradients' own type. With "float32",
            float64 travels as it is.

    Returns:
        The sums, in the same places.
    """
    context = tf.distribute.get_replica_context()
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if context.num_replicas_in_sync > 1 and present:
        wire = [tf.cast(gradient, _wire_type(gradient, options)) for gradient in present]
        communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=options.bytes_per_pack)
        # What travels together has one type.
        for dtype in dict.fromkeys(tensor.dtype for tensor in wire):
            chosen = [i for i, tensor in enumerate(wire) if tensor.dtype == dtype]
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [wire[i] for i in chosen], options=communication)
            for i, total in zip(chosen, sums, strict=True):
                wire[i] = total
        present = [tf.cast(total, gradient.dtype) for total, gradient in zip(wire, present, strict=True)]
    results = iter(present)
    return [None if gradient is None else next(results) for gradient in gradients]


def _wire_type(gradient: tf.Tensor, options: config_lib.Communication) -> tf.DType:
    exact = options.dtype == "float32" and gradient.dtype == tf.float64
    return gradient.dtype if exact else tf.as_dtype(options.dtype)


def replicas() -> int:
    """The number of all replicas; to be called in `strategy.run`."""
    return tf.distribute.get_replica_context().num_replicas_in_sync


def sum_value(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas, apart from the gradients; to be called in `strategy.run`."""
    if replicas() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def clip(gradients: Gradients, norm: float) -> Gradients:
    """Scales the summed gradients so that their global L2 norm is at most `norm` (arXiv 1211.5063)."""
    return tf.clip_by_global_norm(gradients, norm)[0]


def all_finite(gradients: Gradients) -> tf.Tensor:
    """Whether no summed gradient holds an infinity or NaN: bool [], the same on every replica."""
    # A sum is not finite as soon as one term is not, so one reduction per tensor tells.
    sums = [tf.reduce_sum(tf.abs(tf.cast(gradient, tf.float32))) for gradient in gradients if gradient is not None]
    return tf.reduce_all(tf.math.is_finite(tf.stack(sums or [tf.zeros([])])))


def apply_if(
    finite: tf.Tensor, gradients: Gradients, apply: Callable[[Gradients], None], otherwise: Callable[[], None]
) -> None:
    """Calls `apply(gradients)` on every replica where `finite` (bool [], the same everywhere), else `otherwise()`."""

    def on_all_replicas(strategy: tf.distribute.Strategy, finite: tf.Tensor, gradients: Gradients) -> None:
        # The branch is taken outside of the replicas: an optimizer's update inside a branch of a replica is refused.
        tf.cond(
            strategy.experimental_local_results(finite)[0],
            lambda: _run(strategy, apply, gradients),
            lambda: _run(strategy, otherwise),
        )

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(finite, gradients))


def _run(strategy: tf.distribute.Strategy, function: Callable, *args: Gradients) -> tf.Tensor:
    strategy.extended.call_for_each_replica(function, args=args)
    return tf.zeros([])


def sum_over_replicas(
    trainer: StepContext, gradients: Gradients, before: list[tf.Tensor], weight: tf.Tensor | float
) -> Gradients:
    """The one communication of a step: sums the gradients, and averages what each replica did to its statistics.

    `weight` is what this replica's statistics count in the mean; those of all replicas add up to 1.
    """
    # In every step: averaged at a save alone, the time of the save would show in the last bits of the run. The changes
    # are averaged and not the values, so that what did not move stays exactly as it is.
    options = trainer.config.communication
    if trainer.cluster.num_replicas == 1:
        # Dense, as sums over replicas are: of rows that come twice in a sparse one, Keras squares each alone.
        return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    ready = timing.timestamp_after(gradients)
    changes = [(s.value - old) * tf.cast(weight, old.dtype) for s, old in zip(trainer.statistics, before, strict=True)]
    if options.dtype == "float32":
        reduced = all_reduce([*gradients, *changes], options)
        gradients, changes = reduced[: len(gradients)], reduced[len(gradients) :]
    else:
        gradients = all_reduce(gradients, options)
        changes = all_reduce(changes, dataclasses.replace(options, dtype="float32"))
    trainer.communication.assign_add(timing.timestamp_after([*gradients, *changes]) - ready)
    for statistic, old, change in zip(trainer.statistics, before, changes, strict=True):
        statistic.assign(old + change)
    return gradients
