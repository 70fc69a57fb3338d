"""`config.report.noise_scale`: the gradient noise scale, the batch beyond which more examples a step save few steps.

It is tr(Sigma) / |G|^2, where G is the expected gradient and Sigma the covariance of the gradient of one example
(McCandlish et al., arXiv 1812.06162). Both are estimated as in its appendix A.1: the gradient of a part of the batch
has a larger squared norm than that of the whole batch, because it is noisier. A part is the shard of a replica or, with
`config.train.micro_batches`, a micro-batch. The squared norms of the parts are summed in the step's one all-reduce.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import keras
import tensorflow as tf

from tfdist.data.feed import Batch
from tfdist.report.reporter import Reporter
from tfdist.training.run import Run
from tfdist.training.step import per_example, train_step
from tfdist.training.step.context import StepContext
from tfdist.training.step.updates import stages, tables
from tfdist.training.step.updates.tables import Gradients

Number = TypeVar("Number", float, tf.Tensor)
# The name of its variable in checkpoints, which runs without this field lack.
AVERAGES = "report/noise_scale"


def estimate(parts: Number, whole: Number, count: int, batch: int) -> tuple[Number, Number]:
    """Returns unbiased estimates of |G|^2 and of tr(Sigma), from one step.

    The gradient g_i of part i is the mean over its examples, a fraction w_i of the batch. With independent examples the
    expectation of |w_i g_i|^2 / w_i is w_i |G|^2 + tr(Sigma) / batch, whatever the sizes of the parts. For parts of one
    size this is the estimator of arXiv 1812.06162, appendix A.1.

    Args:
        parts: the sum over the parts of |w_i g_i|^2 / w_i.
        whole: |g|^2, where g is the sum of w_i g_i, the gradient of the whole batch.
        count: the number of parts that have examples, at least 2.
        batch: the examples of all parts.
    """
    variance = batch * (parts - whole) / (count - 1)
    return whole - variance / batch, variance


def squared_norm(gradients: Gradients) -> tf.Tensor:
    """Returns the squared norm of all gradients together: float32 []; the rows of a table are summed first."""
    present = [tf.cast(tables.sum_rows(one), tf.float32) for one in gradients if one is not None]
    return 2.0 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(one) for one in present]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScaleStep:
    """As `train_step.train_step`, and averages the estimates of the steps; called in `strategy.run`."""

    # Means over the steps of |G|^2, of tr(Sigma), and of 1, with weights that fall exponentially from the last step
    # on: float64 [3]. Each replica has its own, because sums of many threads may differ in the last bits; the chief's
    # is saved and reported. 0 before the first step.
    averages: tf.Variable
    # The factor by which the weights fall from step to step.
    decay: float
    # Of the global batch.
    parts: int

    def __call__(self, context: StepContext, shard: Batch) -> tf.Tensor:
        """Makes one optimizer step on this replica's shard; returns what `train_step.train_step` does."""
        squares: list[tf.Tensor] = []
        accumulate = functools.partial(_accumulate, context.objective.accumulate, squares)
        reduction = functools.partial(self._sum_over_replicas, context, squares)
        add_up = functools.partial(stages.sum_over_replicas, reduction)
        objective = dataclasses.replace(context.objective, accumulate=accumulate)
        return train_step.train_step(dataclasses.replace(context, objective=objective, add_up=add_up), shard)

    def _sum_over_replicas(
        self,
        context: StepContext,
        squares: Sequence[tf.Tensor],
        gradients: Gradients,
        flags: list[tf.Tensor],
        statistics: Sequence[tuple[keras.Variable, tf.Tensor]],
        weight: float,
    ) -> tuple[Gradients, list[tf.Tensor]]:
        """As `AllReduce`, with one flag more: the squared norms of this replica's parts.

        Args:
            squares: that of the micro-batches, as `_accumulate` adds it; empty if there is one.
        """
        scale = 1.0 if context.loss_scale is None else tf.square(tf.identity(context.loss_scale.value))
        square = squares[0] if squares else squared_norm(gradients)
        gradients, sums = context.reduction(gradients, [*flags, square / (scale * weight)], statistics, weight)
        self._average(sums[-1], squared_norm(gradients) / scale, context.config.data.batch_size)
        return gradients, sums[:-1]

    def _average(self, parts: tf.Tensor, whole: tf.Tensor, batch: int) -> None:
        """Adds the estimates of a step to the averages, unless a gradient is not finite."""
        square, variance = estimate(tf.cast(parts, tf.float64), tf.cast(whole, tf.float64), self.parts, batch)
        old, new = tf.identity(self.averages), tf.stack([square, variance, tf.ones([], tf.float64)])
        finite = tf.math.is_finite(square + variance)
        self.averages.assign(tf.where(finite, self.decay * old + (1.0 - self.decay) * new, old))


def _accumulate(
    accumulate: Callable[..., per_example.Results],
    squares: list[tf.Tensor],
    run: per_example.RunMicroBatch,
    count: int,
    zeros: per_example.Results,
) -> per_example.Results:
    """As `accumulate`, which is `per_example.in_loop` or `unrolled`.

    It adds to `squares` the sum over the micro-batches of |g|^2 / w, where w is the fraction of the micro-batch of this
    replica's shard: float32 [].
    """

    def measure(index: tf.Tensor) -> per_example.Results:
        sums, gradients = run(index)
        return tf.concat([sums, tf.cast(squared_norm(gradients), tf.float64)[tf.newaxis]], axis=0), gradients

    start = (tf.concat([zeros[0], tf.zeros([1], tf.float64)], axis=0), zeros[1])
    sums, gradients = accumulate(measure, count, start)
    squares.append(tf.cast(sums[-1] * count, tf.float32))
    return sums[:-1], gradients


def measure(run: Run) -> Run:
    """Returns `run` with a step that measures the noise scale; with one part, `run` with a note that says why not."""
    parts = run.cluster.num_replicas * run.config.train.micro_batches
    if parts == 1:
        note = (
            f"config.report.noise_scale={run.config.report.noise_scale} has no effect: the noise scale is measured "
            "from two replicas on, or with config.train.micro_batches=2 or more."
        )
        return dataclasses.replace(run, log=dataclasses.replace(run.log, notes=(*run.log.notes, note)))
    with run.cluster.scope():
        averages = tf.Variable(
            tf.zeros([3], tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="noise_scale",
        )
    step = NoiseScaleStep(averages=averages, decay=1.0 - 1.0 / run.config.report.noise_scale, parts=parts)
    return dataclasses.replace(run, train_step=step, more_variables={**run.more_variables, AVERAGES: averages})


def values(averages: Sequence[float]) -> dict[str, float]:
    """Returns what is reported, given `NoiseScaleStep.averages`: {} before the first step.

    `noise_scale`, in examples, is infinite if the gradient cannot be told from its noise: its estimate, a difference,
    is then not above 0. More steps in the average, or a larger batch, lower the error.
    """
    square, variance, weight = averages
    if not weight:
        return {}
    ratio = max(variance, 0.0) / square if square > 0 else math.inf
    return {"noise_scale": ratio, "gradient_square": square / weight, "gradient_variance": variance / weight}


def add_to_report(*, run: Run, report: Reporter) -> None:
    """Adds the noise scale to the reports of training; nothing of it runs between executions."""
    averages = run.more_variables.get(AVERAGES)
    if averages is not None:
        report.measured.append(lambda: values(averages.numpy().tolist()))
