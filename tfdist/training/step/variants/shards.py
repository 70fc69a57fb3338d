"""The step of virtual replicas: a replica computes its shards one after another.

All that depends on the batch is computed per shard, whose shape is the same for any number of replicas: examples,
dropout, normalisation, and the choice of kernels. Sums over shards are exact: integers, or parts on fixed grids.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.data.feed import Batch
from tfdist.training.step import collectives, train_step
from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import repeated_passes
from tfdist.training.step.updates import stages, tables
from tfdist.training.step.updates.tables import Gradients
from tfdist.training.step.variants import integers as integers_lib
from tfdist.training.step.variants.integers import Integers

Results = TypeVar("Results")


class ShardResults(NamedTuple):
    """The sums over a replica's shards."""

    # float64 [len(names) + 1]: the objective's sums, and the number of examples.
    sums: tf.Tensor
    # Gradients, then changes of moving statistics.
    integers: list[tf.Tensor]
    # The largest element of each tensor: float64 [tensors].
    sizes: tf.Tensor
    # Number of shards whose loss, and then whose tensors, are non-finite: int32 [1 + tensors].
    bad: tf.Tensor

    def add(self, other: "ShardResults") -> "ShardResults":
        return ShardResults(
            sums=self.sums + other.sums,
            integers=[old + new for old, new in zip(self.integers, other.integers, strict=True)],
            sizes=tf.maximum(self.sizes, other.sizes),
            bad=self.bad + other.bad,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStep:
    """The training step of virtual replicas; called in `strategy.run`, as `train_step.train_step`."""

    # Number of shards of a replica.
    count: int
    integers: Integers
    # Ranges of the tensors that are summed: float64 [tensors]. Each replica has a copy; all copies are equal.
    ranges: tf.Variable

    def __call__(self, context: StepContext, shards: Batch) -> tf.Tensor:
        """Makes one optimizer step on this replica's shards, [count, n, ...]; repeats it if a range was too small.

        Returns:
            float64 []: 0, available once the update is done.
        """
        train_step.check_trainable(context.model)

        def attempt() -> tf.Tensor:
            before = [(one, tf.identity(one.value)) for one in context.statistics]
            ranges = tf.identity(self.ranges)
            found, present = self._forward_backward(context, shards, ranges)
            too_large = integers_lib.exceeds(found.sizes, ranges)
            flags = tf.concat([tf.cast(tf.reduce_any(too_large), tf.int32)[tf.newaxis], found.bad], axis=0)
            integers = [*found.integers, tf.cast(flags, self.integers.integer)]
            *sums, flags = context.reduction.sum_and_time(integers)
            repeat = flags[0] > 0

            def update() -> None:
                totals = self.integers.to_floats(sums, ranges, flags[2:])
                self.ranges.assign(integers_lib.next_ranges(totals, ranges, flags[2:]))
                _update(context, found.sums, flags[1] > 0, totals, present, before)

            collectives.cond_on_all_replicas(repeat, lambda: self._enlarge(context, found.sizes, ranges), update)
            return repeat

        collectives.repeat_on_all_replicas(attempt)
        return train_step.after_update(context, tf.zeros([], tf.float64))

    def _forward_backward(
        self, context: StepContext, shards: Batch, ranges: tf.Tensor
    ) -> tuple[ShardResults, list[bool]]:
        """Returns the results of all shards of this replica, and which variables have a gradient."""
        present: list[bool] = []
        loss_scale = tf.constant(1.0) if context.loss_scale is None else tf.identity(context.loss_scale.value)

        def of_shard(shard: Batch, index: tf.Tensor, loss_scale: tf.Tensor, ranges: tf.Tensor) -> ShardResults:
            before = [(one, tf.identity(one.value)) for one in context.statistics]
            with repeated_passes.as_replica(index):
                sums, gradients, _ = context.objective.forward_backward(shard, loss_scale)
            present[:] = [one is not None for one in gradients]
            changes = [_change(tf.cast(one.value, old.dtype), old) / self.integers.shards for one, old in before]
            changes = [tf.cast(one, tf.float32) for one in changes]
            for one, old in before:
                one.assign(old)
            values = [*_dense(gradients, context.model.trainable_variables), *changes]
            sizes, bad = integers_lib.largest(values, on_cpu=context.cluster.device_type == "CPU")
            bad_loss = tf.cast(~tf.math.is_finite(sums[context.names.index("loss")]), tf.int32)
            return ShardResults(
                sums=sums,
                integers=self.integers.to_integers(values, ranges),
                sizes=sizes,
                bad=tf.concat([bad_loss[tf.newaxis], bad], axis=0),
            )

        first = replicas_lib.replica_id() * self.count
        compute = compile_shard(of_shard)
        totals = over_shards(compute, shards, self.count, first, ShardResults.add, loss_scale, ranges)
        return totals, present

    def _enlarge(self, context: StepContext, sizes: tf.Tensor, ranges: tf.Tensor) -> None:
        """Makes the ranges fit the largest elements of all shards; only for a step that is repeated."""
        place = tf.one_hot(replicas_lib.replica_id(), context.cluster.num_replicas, dtype=tf.float64)
        # Each replica has its own row, in which the others add 0.
        rows = collectives.sum_differentiable(place[:, tf.newaxis] * sizes)
        sizes = tf.reduce_max(rows, axis=0)
        too_large = integers_lib.exceeds(sizes, ranges)
        self.ranges.assign(tf.where(too_large, integers_lib.range_above(sizes), ranges))


def _update(
    context: StepContext,
    sums: tf.Tensor,
    bad_loss: tf.Tensor,
    totals: list[tf.Tensor],
    present: list[bool],
    before: list[tuple[keras.Variable, tf.Tensor]],
) -> None:
    """Updates weights, moving statistics and totals.

    Args:
        sums: the objective's sums over this replica's shards.
        bad_loss: bool []: whether the loss of any shard is non-finite.
        totals: the sums over all shards of gradients, and the means of the changes of moving statistics.
        present: which variables have a gradient.
        before: the moving statistics, with their values before the step.
    """
    variables = context.model.trainable_variables
    for (statistic, old), change in zip(before, totals[len(variables) :], strict=True):
        statistic.assign(old + tf.cast(change, old.dtype))
    gradients = [
        tf.cast(total, variable.dtype) if has else None
        for total, variable, has in zip(totals, variables, present, strict=False)
    ]
    loss = tf.where(bad_loss, tf.constant(math.nan, tf.float64), tf.zeros([], tf.float64))
    update = context.make_update()
    skipped = update(stages.UpdateInput(gradients=gradients, loss=loss, weight=1.0, statistics=before))
    train_step.add_to_totals(context, sums, skipped)


def compile_shard(function: Callable[..., Results]) -> Callable[..., Results]:
    """Returns `function` as a graph that is not inlined: TensorFlow then optimises it alike in a loop and outside."""
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": True})


def over_shards(
    compute: Callable[..., Results],
    shards: Any,
    count: int,
    first: tf.Tensor,
    add: Callable[[Results, Results], Results],
    *arguments: tf.Tensor,
) -> Results:
    """Calls compute(shard, index, *arguments) for each shard of a replica, and adds up the results.

    Args:
        compute: a result of `compile_shard`, which returns nested tensors; index: int32 [], of the shard in the global
            batch.
        shards: nested tensors [count, n, ...], ragged if n differs between shards.
        first: the index of the first shard.
    """

    def run(place: tf.Tensor) -> Results:
        shard = tf.nest.map_structure(lambda value: _at(value, place), shards)
        return compute(shard, first + place, *arguments)

    totals = run(tf.constant(0))
    if count == 1:
        return totals
    _, totals = tf.while_loop(
        lambda place, _: place < count,
        lambda place, totals: (place + 1, add(totals, run(place))),
        (tf.constant(1), totals),
        parallel_iterations=1,
    )
    return totals


def _at(value: tf.Tensor | tf.RaggedTensor, place: tf.Tensor) -> tf.Tensor:
    shard = value[place]
    return shard.to_tensor() if isinstance(shard, tf.RaggedTensor) else shard


def _dense(gradients: Gradients, variables: list[keras.Variable]) -> list[tf.Tensor]:
    """Returns gradients as float32 tensors: rows of tables are summed, None becomes 0."""
    return [
        tf.zeros(variable.shape) if gradient is None else tf.cast(tables.sum_rows(gradient), tf.float32)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _change(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Returns the change of a variable; 0 where it has not changed, even if it is infinite."""
    return tf.where(new == old, tf.zeros_like(old), new - old)
