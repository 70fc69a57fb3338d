"""One training step and one evaluation step: the mathematics of a replica, and the calls that run many of them."""

import functools
import math

import keras
import tensorflow as tf

from tfdist.data.stream import Batch
from tfdist.training.step import context, optimizer, seed_generators
from tfdist.training.step import gradients as gradients_lib
from tfdist.training.step.context import StepContext


def train_step(trainer: StepContext, batch: Batch | dict) -> tf.Tensor:
    """One optimizer step on one replica's share of the global batch; runs in `strategy.run`.

    Returns:
        float64 [len(names) + 1]: the sums of this replica's values, and its number of examples.
    """
    optimizer.check_trainable(trainer.model)
    before = [tf.convert_to_tensor(statistic.value) for statistic in trainer.statistics]
    if trainer.compiled is None:
        sums, gradients = _accumulate(trainer, batch)
        weight = 1 / trainer.cluster.num_replicas
    else:
        sums, gradients, weight = trainer.compiled.learn(
            batch, 1.0 if trainer.loss_scale is None else trainer.loss_scale.value
        )
    if trainer.guarded:  # Whether the loss is finite travels with the gradients: all replicas must decide alike.
        loss = sums[trainer.names.index("loss")]
        gradients = [*gradients, tf.where(tf.math.is_finite(loss), 0.0, 1.0)]
    gradients = gradients_lib.sum_over_replicas(trainer, gradients, before, weight)
    bad_loss = gradients.pop() > 0 if trainer.guarded else tf.constant(False)
    if trainer.guarded or trainer.loss_scale is not None:
        skipped = _apply_if_finite(trainer, gradients, bad_loss, before)
    else:
        apply(trainer, gradients)
        skipped = None
    add_to_totals(trainer, sums, skipped)
    # Handed back when the step is done, not when its forward pass is: the first layer is updated last.
    with tf.control_dependencies([tf.convert_to_tensor(trainer.model.trainable_variables[0].value)]):
        return tf.identity(sums)


def _apply_if_finite(
    trainer: StepContext, gradients: gradients_lib.Gradients, bad_loss: tf.Tensor, before: list[tf.Tensor]
) -> tf.Tensor:
    """Makes the update where loss and gradients are finite; else leaves nothing of the step but that it was made.

    Returns:
        bool []: whether the step counts as skipped. Overflows of scaled gradients do not count: a smaller scale mends
        them.
    """
    scale = None if trainer.loss_scale is None else tf.convert_to_tensor(trainer.loss_scale.value)
    if scale is not None:
        gradients = [None if gradient is None else gradient / scale for gradient in gradients]
    finite = gradients_lib.all_finite(gradients) & ~bad_loss

    def leave_out() -> None:
        # Schedule, dropout and report go by the step.
        trainer.optimizer.iterations.assign_add(1)
        if trainer.loss_scale is not None:
            trainer.loss_scale.update(finite=False)

    gradients_lib.apply_if(finite, gradients, lambda finite_gradients: apply(trainer, finite_gradients), leave_out)
    for statistic, old in zip(trainer.statistics, before, strict=True):
        statistic.assign(tf.where(finite, statistic.value, old))
    return ~finite if scale is None else bad_loss | (~finite & (scale <= 1.0))


def add_to_totals(trainer: StepContext, sums: tf.Tensor, skipped: tf.Tensor | None) -> None:
    """Adds a step's sums over examples (float64 [len(names) + 1]) to those of the call, unless it was `skipped`."""
    steps = tf.zeros([2], tf.float64)
    if skipped is not None:
        sums = tf.where(skipped, tf.zeros_like(sums), sums)
        met = skipped | (tf.identity(trainer.totals)[-2] > 0)
        steps = tf.cast(tf.stack([skipped, ~met]), tf.float64) / trainer.cluster.num_replicas
    trainer.totals.assign_add(tf.concat([sums, steps], axis=0))


def apply(trainer: StepContext, gradients: gradients_lib.Gradients) -> None:
    """Makes one update of the optimizer, clipped if the config says so; to be called in `strategy.run`."""
    if trainer.config.train.clip_norm is not None:
        gradients = gradients_lib.clip(gradients, trainer.config.train.clip_norm)
    trainer.optimizer.apply(gradients, trainer.model.trainable_variables)
    if trainer.loss_scale is not None:
        trainer.loss_scale.update(finite=True)


def _accumulate(trainer: StepContext, batch: Batch) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    """Runs the micro-batches one after another and adds up their sums and gradients."""
    pieces = trainer.config.train.micro_batches
    if pieces == 1:
        return forward_backward(trainer, batch, tf.constant(0))
    count, group = next(iter(batch.values())).shape[0] // pieces, _group_size(trainer.model)
    group = 1 if count % group else group
    # Each takes every so many-th group: on any number of replicas the same examples of the global batch, and so the
    # same changes of a normalisation's moving statistics.
    split = {name: tf.reshape(value, [-1, pieces, group, *value.shape[1:]]) for name, value in batch.items()}
    variables = trainer.model.trainable_variables
    initial = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    def body(piece: tf.Tensor, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tuple:
        part = {name: tf.reshape(value[:, piece], [count, *value.shape[3:]]) for name, value in split.items()}
        more, these = forward_backward(trainer, part, piece)
        added = [
            old if new is None else old + tf.convert_to_tensor(new) for old, new in zip(gradients, these, strict=True)
        ]
        return piece + 1, sums + more, added

    start = (tf.constant(0), tf.zeros([len(trainer.names) + 1], tf.float64), initial)
    _, sums, gradients = tf.while_loop(lambda piece, *_: piece < pieces, body, start, parallel_iterations=1)
    return sums, gradients


def _group_size(model: keras.Model) -> int:
    """How many examples of a batch belong together: a multiple of the sizes of all groups with statistics."""
    normalisations = (one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization))
    return math.lcm(*(getattr(layer, "group_size", None) or 1 for layer in normalisations))


def forward_backward(trainer: StepContext, batch: Batch, piece: tf.Tensor) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    """Runs micro-batch `piece` (int32 []) forward and backward; returns the sums of its values and its gradients."""
    run = functools.partial(_forward_backward, trainer)
    if trainer.config.train.xla:  # This much and no more: XLA compiles no communication between workers.
        run = tf.function(run, autograph=False, jit_compile=True)
    return run(batch, piece)


def _forward_backward(
    trainer: StepContext, batch: Batch, piece: tf.Tensor
) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    config = trainer.config
    seed_generators.begin_forward_pass(piece)
    with tf.GradientTape() as tape:
        values = trainer.objective(trainer.model, batch, training=True)
        num_examples = next(iter(batch.values())).shape[0]
        names = {*context.check_objective(values, num_examples)} ^ {*trainer.names} - {"regularization"}
        if names:
            raise ValueError(
                "config.objective must return the same values in training and evaluation. Received in one of them "
                f"alone: {', '.join(sorted(names))}"
            )
        # Divided once, by the true global count: the optimizer applies the sum over replicas and micro-batches.
        dtype = tf.float64 if values["loss"].dtype == tf.float64 else tf.float32
        loss = tf.nn.compute_average_loss(tf.cast(values["loss"], dtype), global_batch_size=config.data.batch_size)
        regularization = None
        if trainer.model.losses:
            regularization = tf.cast(tf.add_n(trainer.model.losses), dtype)
            loss += tf.nn.scale_regularization_loss(regularization) / config.train.micro_batches
        if trainer.loss_scale is not None:
            loss *= trainer.loss_scale.value
    gradients = tape.gradient(loss, trainer.model.trainable_variables)
    if regularization is not None:
        values = values | {"regularization": tf.fill([num_examples], regularization)}
    return _sums(trainer, values, tf.ones([num_examples], tf.bool)), gradients


def _sums(trainer: StepContext, values: dict[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
    columns = [tf.cast(tf.ensure_shape(values[n], mask.shape), tf.float64) for n in trainer.names if n in values]
    if len(columns) < len(trainer.names):
        columns.append(tf.zeros_like(columns[0]))
    columns.append(tf.ones_like(columns[0]))
    # where, not a product: a NaN in padding must not spoil the sum.
    return tf.reduce_sum(tf.where(mask, tf.stack(columns), tf.zeros([], tf.float64)), axis=1)


def evaluation_step(trainer: StepContext, batch: Batch | dict, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Adds one replica's share of an evaluation batch to the totals; `mask`, bool [n], is False for padding."""
    if trainer.compiled is None:
        sums = _sums(trainer, trainer.objective(trainer.model, batch, training=False), mask)
    else:
        sums = trainer.compiled.assess(batch)
    add_to_totals(trainer, sums, None)
    return sums
