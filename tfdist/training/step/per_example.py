"""`PerExampleObjective`: the objective of a config, whose function returns one value per example."""

import dataclasses
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.data.feed import Batch
from tfdist.training.step import collectives, objective
from tfdist.training.step.random_numbers import seed_generators
from tfdist.training.step.updates import tables
from tfdist.training.step.updates.tables import Gradients

# objective(model, batch, *, training) -> {"loss": [n], ...}
ObjectiveFunction = Callable[..., dict[str, tf.Tensor]]
# (sums, gradients): float64 [k], and a tensor per variable; None for a variable without a gradient.
Results = tuple[tf.Tensor, list[tf.Tensor | None]]
# Returns the results of micro-batch `index`, int32 [].
RunMicroBatch = Callable[[tf.Tensor], Results]


def in_loop(run: RunMicroBatch, count: int, zeros: Results) -> Results:
    """Adds up the results of `count` micro-batches in a graph loop, so that the graph holds the model once."""

    def body(index: tf.Tensor, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tuple:
        return index + 1, *_add((sums, gradients), run(index))

    _, sums, gradients = tf.while_loop(
        lambda index, *_: index < count, body, (tf.constant(0), *zeros), parallel_iterations=1
    )
    return sums, gradients


def unroll(run: RunMicroBatch, count: int, zeros: Results) -> Results:
    """Like `in_loop`, for a model that communicates in its forward pass: the graph holds the model `count` times.

    TensorFlow does not allow MirroredStrategy's collectives in a graph loop.
    """
    totals = zeros
    for index in range(count):
        # One after another, so that only the activations of one micro-batch are in memory.
        with tf.control_dependencies([totals[0], *totals[1]]):
            totals = _add(totals, run(tf.constant(index)))
    return totals


def _add(totals: Results, new: Results) -> Results:
    gradients = [
        total if one is None else total + tf.convert_to_tensor(one)
        for total, one in zip(totals[1], new[1], strict=True)
    ]
    return totals[0] + new[0], gradients


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PerExampleObjective(objective.Objective):
    """The objective of a config: a function that returns one value per example for the loss and each metric."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    function: ObjectiveFunction
    # The function's keys, in order; "regularization" is added if the model has regularisation losses.
    names: tuple[str, ...]
    # The divisor of the summed loss.
    global_batch: int
    micro_batches: int = 1
    # Number of consecutive examples that must be in the same micro-batch.
    group_size: int = 1
    # Number of shards that this replica computes one after another; see variants/shards.py.
    shards: int = 1
    # Runs the micro-batches one after another.
    accumulate: Callable[..., Results] = in_loop
    xla: bool = False

    def forward_backward(self, shard: Batch, loss_scale: tf.Tensor | float) -> objective.ShardResult:
        """Runs the micro-batches one after another and adds up their sums and gradients."""
        weight = 1 / collectives.num_replicas()
        if self.micro_batches == 1:
            return objective.ShardResult(*self.micro_batch(shard, tf.constant(0), loss_scale), weight)
        count = next(iter(shard.values())).shape[0] // self.micro_batches
        group = 1 if count % self.group_size else self.group_size
        # Micro-batch i takes groups i, i + micro_batches, ...: the same ones for any number of replicas.
        groups = {
            name: tf.reshape(value, [-1, self.micro_batches, group, *value.shape[1:]]) for name, value in shard.items()
        }

        present: list[bool] = []

        def run(index: tf.Tensor) -> Results:
            batch = {n: tf.reshape(value[:, index], [count, *value.shape[3:]]) for n, value in groups.items()}
            sums, gradients = self.micro_batch(batch, index, loss_scale)
            present[:] = [one is not None for one in gradients]  # Set while the micro-batch is traced.
            return sums, gradients

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.model.trainable_variables]
        start = (tf.zeros([len(self.names) + 1], tf.float64), zeros)
        sums, gradients = self.accumulate(run, self.micro_batches, start)
        # As without micro-batches, an unused weight has no gradient and no weight decay.
        gradients = [one if used else None for one, used in zip(gradients, present, strict=True)]
        return objective.ShardResult(sums, gradients, weight)

    def micro_batch(self, batch: Batch, index: tf.Tensor, loss_scale: tf.Tensor | float) -> tuple[tf.Tensor, Gradients]:
        """Runs micro-batch `index` (int32 []) forward and backward; returns its sums and gradients."""
        run = self._micro_batch
        if self.xla:  # Only this part of the step: XLA cannot compile communication between workers.
            run = tf.function(run, autograph=False, jit_compile=True)
        return run(batch, index, loss_scale)

    def _micro_batch(
        self, batch: Batch, index: tf.Tensor, loss_scale: tf.Tensor | float
    ) -> tuple[tf.Tensor, Gradients]:
        seed_generators.begin_forward_pass(index)
        num_examples = next(iter(batch.values())).shape[0]
        with tf.GradientTape() as tape:
            values = self.function(self.model, batch, training=True)
            self._check_names(check_values(values, num_examples))
            # The loss is divided by the global batch size here, once: gradients are summed, never averaged.
            dtype = tf.float64 if values["loss"].dtype == tf.float64 else tf.float32
            losses = tf.cast(values["loss"], dtype)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self.global_batch)
            if self.model.losses:
                regularization = tf.add_n([tf.cast(one, dtype) for one in self.model.losses])
                loss += tf.nn.scale_regularization_loss(regularization) / (self.micro_batches * self.shards)
                values = values | {"regularization": tf.fill([num_examples], regularization)}
            loss *= tf.cast(loss_scale, dtype)
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        gradients = tables.select(gradients, variables, batch, self.optimizer)
        return self._sums(values, tf.ones([num_examples], tf.bool)), gradients

    def _check_names(self, names: tuple[str, ...]) -> None:
        differing = {*names} ^ ({*self.names} - {"regularization"})
        if differing:
            raise ValueError(
                "config.objective must return the same values in training and evaluation. Received only in one "
                f"of them: {', '.join(sorted(differing))}"
            )

    def evaluate(self, batch: Batch, mask: tf.Tensor) -> tf.Tensor:
        """Returns the sums over a replica's evaluation batch; `mask`, bool [n], is False for padding."""
        return self._sums(self.function(self.model, batch, training=False), mask)

    def _sums(self, values: dict[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        columns = [tf.cast(tf.ensure_shape(values[n], mask.shape), tf.float64) for n in self.names if n in values]
        if len(columns) < len(self.names):  # An evaluation has no "regularization".
            columns.append(tf.zeros_like(columns[0]))
        columns.append(tf.ones_like(columns[0]))
        # where, not a product: a NaN in padding must not spoil the sum.
        return tf.reduce_sum(tf.where(mask, tf.stack(columns), tf.zeros([], tf.float64)), axis=1)

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        """Divides the sums by the number of examples, once; NaN if every step was skipped."""
        return {name: totals[name] / (totals["examples"] or math.nan) for name in self.names}


def check_values(values: dict[str, tf.Tensor], num_examples: int) -> tuple[str, ...]:
    """Checks that an objective returned one value per example, or raises ValueError; returns its keys."""
    if not isinstance(values, dict) or "loss" not in values:
        received = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise ValueError(f'config.objective must return a dict with a "loss". Received: {received}')
    for name, value in values.items():
        shape = tf.convert_to_tensor(value).shape
        if not shape.is_compatible_with([num_examples]):  # It may be unknown here: `_sums` checks it.
            raise ValueError(
                f"config.objective must return one value per example, without averaging: {name!r} has shape "
                f"{shape} for a batch of {num_examples} examples, and should have ({num_examples},)."
            )
        if name in (*objective.COUNTS, *objective.MEASUREMENTS, "regularization"):
            raise ValueError(f"config.objective returns {name!r}, a name that tfdist uses itself: choose another.")
    return tuple(values)
