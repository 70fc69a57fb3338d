"""Keras' losses and metrics of a compiled model over the examples of all replicas.

A replica gets its shard of a batch without padding. The values of all replicas add up to the loss of the global batch,
as on one device: `whole_batch/`. The last batch of an epoch may be smaller, and shards may differ
in size by one example. If there are fewer examples than replicas, an empty shard holds one example with weight 0.
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.whole_batch import metric_state, reductions, shard_losses
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.metric_state import ModelObjective
from tfdist.keras_fit.whole_batch.per_example import is_per_example
from tfdist.keras_fit.whole_batch.rows import Rows
from tfdist.keras_fit.whole_batch.shard_losses import ShardLosses
from tfdist.training import api as trainer

# A replica's shard of a batch: "data" is (x,), (x, y) or (x, y, sample_weight); "count" and "total", int64 [], are the
# examples of the shard and of the global batch.
Element = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompiledObjective(ModelObjective):
    """The losses and metrics of a compiled Keras model; see `training.step.objective.Objective`."""

    optimizer: keras.optimizers.Optimizer
    # Examples of the largest global batch, when it trains and when it evaluates.
    batch_sizes: dict[bool, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The values that each step sums: the loss, and each output's own if there are several."""
        return ("loss", *(tracker.name for tracker in self._trackers))

    @property
    def _trackers(self) -> list[keras.metrics.Metric]:
        return compiled_model.trackers(self.model)

    @tf.autograph.experimental.do_not_convert  # As in Keras: nothing here depends on a tensor's value.
    def forward_backward(self, shard: Element, loss_scale: tf.Tensor | float) -> trainer.ShardResult:
        """Runs a replica's shard of a batch forward and backward; called in `strategy.run`."""

        parts = self.model.jit_compile and trainer.num_replicas() > 1 and _communicates(self.model)

        def forward_backward(shard: Element) -> tuple[tf.Tensor, trainer.Gradients]:
            trainer.begin_forward_pass(0)
            with tf.GradientTape() as tape:
                loss, sums, predictions = self._forward(shard, training=True, by_xla=parts)
                loss = self.optimizer.scale_loss(loss) * loss_scale
            self._update_metrics(shard, predictions, training=True)
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            return sums, trainer.select_rows(gradients, variables, shard["data"], self.optimizer)

        if self.model.jit_compile and not parts:
            # Without the sum over replicas, which XLA cannot compile on CPUs.
            forward_backward = tf.function(forward_backward, jit_compile=True, autograph=False)
        weight = shard["count"] / shard["total"]
        return trainer.ShardResult(*forward_backward(shard), weight)

    @tf.autograph.experimental.do_not_convert
    def evaluate(self, shard: Element) -> tf.Tensor:
        """Runs a replica's shard of an evaluation batch; returns sums as in `ShardResult`."""
        _, sums, predictions = self._forward(shard, training=False)
        self._update_metrics(shard, predictions, training=False)
        return sums

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        """Returns Keras' logs of the sums `totals` over all replicas. A collective: every worker must call it."""
        logs: dict[str, float] = {}
        for metric in self.model.metrics:
            if metric.name in totals:
                logs[metric.name] = totals[metric.name] / totals["examples"]
                continue
            logs |= compiled_model.flat({metric.name: metric.result()})
        if compiled_model.overrides(self.model, "get_metrics_result"):
            self.of_epoch(logs)
            logs = compiled_model.flat(self.model.get_metrics_result())
        return {name: compiled_model.as_keras(value) for name, value in logs.items()}

    def of_epoch(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the same values for an epoch. Keras' means of the losses get theirs, for `get_metrics_result()`."""
        for metric in self.model.metrics:
            if metric.name in self.names:
                metric.total.assign(logs[metric.name])
                metric.count.assign(1.0)
        return logs

    def _forward(self, shard: Element, *, training: bool, by_xla: bool = False) -> tuple[tf.Tensor, tf.Tensor, Any]:
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(shard["data"])
        rows = rows_lib.rows_of(shard, self.batch_sizes[training])
        assert shard_losses.losses_are_patched(), "call this within shard_losses.patch_losses"
        # A loss that a layer calls for its add_loss, such as that of Keras' example of an endpoint layer.
        called = shard_losses.mode(alone=True, shard=None if by_xla else ShardLosses(rows=rows, means=True))
        with called, trainer.shard_present(rows.present):
            call = compiled_model.call_by_xla if by_xla else compiled_model.call_with_losses
            predictions, added = call(model, x, rows, training=training)
        for tracker in self._trackers:
            shard_losses.capture(tracker)
        parts: list[tf.Tensor] = []
        with shard_losses.mode(alone=True, parts=parts):
            if not compiled_model.overrides(model, "compute_loss"):
                loss = self._loss(rows, y, predictions, sample_weight, added)
            else:
                # A compute_loss of the user's: assumed to be a mean over the examples it receives.
                with shard_losses.mode(shard=ShardLosses(rows=rows, means=True)), rows_lib.current(rows):
                    loss = compiled_model.compute_loss(model, x, y, predictions, sample_weight, training=training)
                values = [reductions.share_value(value, rows) for value in (loss, *parts)]
                loss, *parts = [tf.cast(rows.weight, tf.float32) * tf.cast(value, tf.float32) for value in values]
        total = tf.cast(shard["total"], tf.float64)
        sums = [tf.cast(part, tf.float64) * total for part in (loss, *parts)]
        return loss, tf.stack([*sums, tf.cast(shard["count"], tf.float64)]), predictions

    def _loss(self, rows: Rows, y: Any, predictions: Any, sample_weight: Any, added: list[tf.Tensor]) -> tf.Tensor:
        losses, compute = [], compiled_model.losses(self.model)
        if compute is not None:
            with shard_losses.mode(shard=ShardLosses(rows=rows)):
                losses.append(compute(y, predictions, sample_weight))
        # Keras sums a loss of `add_loss` that is no scalar, such as a value per example.
        weight, present = tf.cast(rows.weight, tf.float32), rows.present
        sums = [tf.cast(keras.ops.sum(loss), tf.float32) for loss in added]
        losses += [(present if loss.shape.rank else weight) * total for loss, total in zip(added, sums, strict=True)]
        if not losses:
            raise ValueError("There is no loss to minimise: pass a loss to compile, or call add_loss in the model.")
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses])

    def _update_metrics(self, shard: Element, predictions: Any, *, training: bool) -> None:
        _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(shard["data"])
        metrics = compiled_model.metrics(self.model)
        if metrics is None:
            return

        # Not a branch, for which the host would wait for a GPU.
        variables = self.model.metrics_variables if self.may_be_empty else []
        kept = [(one, tf.convert_to_tensor(one.value)) for one in variables if not metric_state.is_whole(one)]
        with rows_lib.current(rows_lib.rows_of(shard, self.batch_sizes[training])):
            metrics.update_state(y, predictions, sample_weight)
        for variable, old in kept:
            variable.assign(tf.where(shard["count"] > 0, variable.value, old))


def _communicates(model: keras.Model) -> bool:
    """Returns whether replicas communicate for the losses and metrics of a compiled model, which XLA cannot.

    Raises:
        ValueError: they do, and XLA cannot compile the model alone either.
    """
    losses = [keras.losses.get(loss) for loss in compiled_model.compile_losses(model) if loss is not None]
    layers = [one for one in trainer.layers_of_all_depths(model) if not isinstance(one, keras.Model)]
    if not (
        any(_may_mask(layer) for layer in layers)
        or any(not is_per_example(loss) for loss in losses)
        or any(getattr(loss, "reduction", None) == "mean_with_sample_weight" for loss in losses)
        or any(metric_state.is_whole(variable) for variable in model.metrics_variables)
    ):
        return False
    if any(isinstance(layer, keras.layers.RNN) for layer in layers):
        raise ValueError(
            "compile(jit_compile=True) is not supported on several replicas for a model with recurrent layers whose "
            "masks, losses or metrics need values of all replicas. Remove jit_compile."
        )
    return True


def _may_mask(layer: keras.Layer) -> bool:
    overrides = type(layer).compute_mask is not keras.Layer.compute_mask
    return overrides and not isinstance(layer, keras.layers.RNN) and getattr(layer, "mask_zero", True)
