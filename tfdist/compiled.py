"""The step of a model that was given to `compile`: Keras' losses and metrics over the examples of all replicas.

A replica is given its share of a batch without padding, so whatever Keras computes of it is right for the share. What
the replicas add up to is the loss of the whole batch, as one device would have it: the last batch of an epoch may be
smaller, and shares may differ by an example. Where there are fewer examples than replicas, one example stands in and
counts nothing.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist import gradients as gradients_lib
from tfdist import randomness

# A replica's share of a batch: "data" is (x,), (x, y) or (x, y, sample_weight); "count" and "total", int64 [], are the
# examples of the share and of the whole batch.
Element = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled model as the step sees it."""

    model: keras.Model
    # Whether a share may be empty; see above.
    may_be_empty: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What is summed in each step: the loss, and each output's own where there are several."""
        return ("loss", *(tracker.name for tracker in self._trackers))

    @property
    def _trackers(self) -> list[keras.metrics.Metric]:
        return [] if self.model._compile_loss is None else self.model._compile_loss.metrics

    def learn(
        self, element: Element, loss_scale: tf.Tensor | float
    ) -> tuple[tf.Tensor, gradients_lib.Gradients, tf.Tensor]:
        """Runs a replica's share forward and backward.

        Returns:
            (sums, gradients, weight): float64 [len(names) + 1], as `step.train_step`; the replica's part of the
            gradients of the global loss, times `loss_scale`; float32 [], its share of the batch's examples.
        """
        randomness.begin(0)
        with tf.GradientTape() as tape:
            loss, sums, predictions = self._forward(element, training=True)
            loss = loss * loss_scale
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self._update_metrics(element, predictions)
        return sums, gradients, _weight(element)

    def assess(self, element: Element) -> tf.Tensor:
        """Runs a replica's share of an evaluation batch; returns the sums, as `learn`."""
        _, sums, predictions = self._forward(element, training=False)
        self._update_metrics(element, predictions)
        return sums

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        """Returns Keras' logs of the sums `totals` over all replicas; reads metrics, so every worker must call it."""
        logs: dict[str, float] = {}
        for metric in self.model.metrics:
            if metric is self.model._loss_tracker or metric in self._trackers:
                logs[metric.name] = totals[metric.name] / totals["examples"]
                continue
            result = metric.result()
            logs |= result if isinstance(result, dict) else {metric.name: result}
        return {name: float(keras.ops.convert_to_numpy(value)) for name, value in logs.items()}

    def reset(self) -> None:
        """Forgets what the metrics have seen."""
        self.model.reset_metrics()

    def metric_values(self) -> list[Any]:
        """Returns the variables of all metrics as nested lists of numbers; every worker must call it."""
        return [keras.ops.convert_to_numpy(variable).tolist() for variable in self.model.metrics_variables]

    def restore_metrics(self, values: list[Any]) -> None:
        """Makes the metrics go on from what `metric_values` returned."""
        for variable, value in zip(self.model.metrics_variables, values, strict=True):
            variable.assign(value)

    def _forward(self, element: Element, *, training: bool) -> tuple[tf.Tensor, tf.Tensor, Any]:
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(element["data"])
        predictions = model(x, training=training) if model._call_has_training_arg else model(x)
        share = _Share(weight=_weight(element), present=tf.cast(element["count"] > 0, tf.float32))
        parts: list[tf.Tensor] = []
        losses = []
        if model._compile_loss is not None:
            with share.taken_into_account(), _recorded(self._trackers, parts):
                losses.append(model._compile_loss(y, predictions, sample_weight))
        losses += [share.weight * model._aggregate_additional_loss(loss) for loss in model.losses]
        loss = tf.add_n([tf.cast(loss, tf.float32) for loss in losses])
        total = tf.cast(element["total"], tf.float64)
        sums = [tf.cast(part, tf.float64) * total for part in (loss, *parts)]
        return loss, tf.stack([*sums, tf.cast(element["count"], tf.float64)]), predictions

    def _update_metrics(self, element: Element, predictions: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(element["data"])
        del x
        metrics = self.model._compile_metrics
        if metrics is None:
            return

        def update() -> None:
            metrics.update_state(y, predictions, sample_weight)

        if self.may_be_empty:
            tf.cond(element["count"] > 0, lambda: _after(update), lambda: tf.constant(0))
        else:
            update()


def _after(update: Callable[[], None]) -> tf.Tensor:
    update()
    return tf.constant(0)


def _weight(element: Element) -> tf.Tensor:
    return tf.cast(element["count"] / element["total"], tf.float32)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """How much of a batch a replica has."""

    # Its share of the batch's examples, and 1.0, or 0.0 where it has none.
    weight: tf.Tensor
    present: tf.Tensor

    @contextlib.contextmanager
    def taken_into_account(self) -> Iterator[None]:
        """Within, every Keras loss is this replica's part of the loss of the whole batch."""
        # Keras divides by what a replica has and by the number of replicas: wrong as soon as shares or masks differ.
        with (
            mock.patch.object(keras_loss, "reduce_weighted_values", self._reduce),
            mock.patch.object(keras_loss, "unscale_loss_for_distribution", lambda value: value),
        ):
            yield

    def _reduce(
        self,
        values: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: str | None = None,
    ) -> tf.Tensor:
        if reduction in (None, "none"):
            raise ValueError('A loss with reduction=None is no number to minimise: use "sum_over_batch_size".')
        values = keras.ops.convert_to_tensor(values, dtype=dtype)
        weights = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction="sum")
        if weights is not None:
            values, weights = keras_loss.squeeze_or_expand_to_same_rank(values, tf.cast(weights, values.dtype))
            values = values * weights
        total, present = tf.reduce_sum(values), tf.cast(self.present, values.dtype)
        if reduction == "sum":
            return total * present
        if values.shape.rank == 0:
            return total * tf.cast(self.weight, values.dtype)
        size = tf.cast(tf.size(values), values.dtype)
        if reduction == "mean_with_sample_weight" and weights is not None:
            divisor = gradients_lib.sum_over_replicas(tf.reduce_sum(weights) * present)
            return tf.math.divide_no_nan(total * present, divisor)
        if mask is not None:
            valid = gradients_lib.sum_over_replicas(tf.reduce_sum(tf.cast(mask, values.dtype)) * present)
            return tf.math.divide_no_nan(total * present * tf.cast(tf.size(mask), values.dtype) / size, valid)
        return total / size * tf.cast(self.weight, values.dtype)


@contextlib.contextmanager
def _recorded(trackers: list[keras.metrics.Metric], parts: list[tf.Tensor]) -> Iterator[None]:
    """Within, what Keras tells the `trackers` of the outputs' losses is put into `parts`, in their order."""
    for tracker in trackers:
        tracker.update_state = lambda value, sample_weight=None: parts.append(value)
    try:
        yield
    finally:
        for tracker in trackers:
            del tracker.update_state
