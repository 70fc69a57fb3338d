"""The step of a model that was given to `compile`: Keras' losses and metrics over the examples of all replicas.

A replica is given its share of a batch without padding, so whatever Keras computes of it is right for the share. What
the replicas add up to is the loss of the whole batch, as one device would have it: the last batch of an epoch may be
smaller, and shares may differ by an example. Where there are fewer examples than replicas, one example stands in and
counts nothing.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist.training.step import gradients as gradients_lib
from tfdist.training.step import seed_generators

# A replica's share of a batch: "data" is (x,), (x, y) or (x, y, sample_weight); "count" and "total", int64 [], are the
# examples of the share and of the whole batch.
Element = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompiledObjective:
    """A compiled model as the step sees it."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    # Whether a share may be empty; see above.
    may_be_empty: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """What is summed in each step: the loss, and each output's own where there are several."""
        return ("loss", *(tracker.name for tracker in self._trackers))

    @property
    def _trackers(self) -> list[keras.metrics.Metric]:
        return [] if self.model._compile_loss is None else self.model._compile_loss.metrics

    @tf.autograph.experimental.do_not_convert  # As in Keras: nothing here depends on a tensor's value.
    def learn(
        self, element: Element, loss_scale: tf.Tensor | float
    ) -> tuple[tf.Tensor, gradients_lib.Gradients, tf.Tensor]:
        """Runs a replica's share forward and backward.

        Returns:
            (sums, gradients, weight): float64 [len(names) + 1], as `step.train_step`; the replica's part of the
            gradients of the global loss, times `loss_scale`; float32 [], its share of the batch's examples.
        """

        def forward_backward(element: Element) -> tuple[tf.Tensor, gradients_lib.Gradients]:
            seed_generators.begin_forward_pass(0)
            with tf.GradientTape() as tape:
                loss, sums, predictions = self._forward(element, training=True)
                loss = self.optimizer.scale_loss(loss) * loss_scale
            self._update_metrics(element, predictions)
            return sums, tape.gradient(loss, self.model.trainable_variables)

        if self.model.jit_compile:
            # Without the sum over replicas, which XLA cannot compile on CPUs.
            forward_backward = tf.function(forward_backward, jit_compile=True, autograph=False)
        return *forward_backward(element), _weight(element)

    @tf.autograph.experimental.do_not_convert
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

    def finish(self) -> None:
        """Gives the weights what an optimizer with `use_ema` keeps for the end; called in `strategy.scope`."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)

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
        for tracker in self._trackers:
            _capture(tracker)
        share = _Share(
            weight=_weight(element),
            present=tf.cast(element["count"] > 0, tf.float32),
            by_xla=training and model.jit_compile,
        )
        parts: list[tf.Tensor] = []
        with _loss_mode_of(alone=True, parts=parts):
            if type(model).compute_loss is keras.Model.compute_loss:
                loss = self._loss(share, y, predictions, sample_weight)
            else:
                # Its own: taken for a mean over the examples that it was given.
                loss = model._compute_loss(x, y, predictions, sample_weight, training=training)
                loss, *parts = [share.weight * tf.cast(value, tf.float32) for value in (loss, *parts)]
        total = tf.cast(element["total"], tf.float64)
        sums = [tf.cast(part, tf.float64) * total for part in (loss, *parts)]
        return loss, tf.stack([*sums, tf.cast(element["count"], tf.float64)]), predictions

    def _loss(self, share: "_Share", y: Any, predictions: Any, sample_weight: Any) -> tf.Tensor:
        model, losses = self.model, []
        if model._compile_loss is not None:
            with _loss_mode_of(share=share):
                losses.append(model._compile_loss(y, predictions, sample_weight))
        losses += [share.weight * model._aggregate_additional_loss(loss) for loss in model.losses]
        if not losses:
            raise ValueError("There is nothing to minimise: pass compile a loss, or add_loss in the model.")
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses])

    def _update_metrics(self, element: Element, predictions: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(element["data"])
        own = type(self.model).compute_metrics is not keras.Model.compute_metrics
        if self.model._compile_metrics is None and not own:
            return

        def update() -> None:
            if own:
                self.model.compute_metrics(x, y, predictions, sample_weight)
            else:
                self.model._compile_metrics.update_state(y, predictions, sample_weight)

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
    # Whether XLA compiles what is computed: it cannot communicate.
    by_xla: bool

    def reduce(
        self,
        values: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: str | None = None,
    ) -> tf.Tensor:
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
            divisor = self._over_replicas(tf.reduce_sum(weights) * present)
            return tf.math.divide_no_nan(total * present, divisor)
        if mask is not None:
            valid = self._over_replicas(tf.reduce_sum(tf.cast(mask, values.dtype)) * present)
            return tf.math.divide_no_nan(total * present * tf.cast(tf.size(mask), values.dtype) / size, valid)
        return total / size * tf.cast(self.weight, values.dtype)

    def _over_replicas(self, value: tf.Tensor) -> tf.Tensor:
        if self.by_xla and gradients_lib.replicas() > 1:
            raise ValueError(
                "compile(jit_compile=True) cannot be used with masks, nor with mean_with_sample_weight, on several "
                "replicas: what they divide by is a sum over all. Leave jit_compile out."
            )
        return gradients_lib.sum_value(value)


class _LossMode(threading.local):
    """How Keras' losses are to be computed in this thread: the replicas of a process are traced in threads in turns."""

    # Whether they shall know nothing of replicas.
    alone: bool = False
    # Whose part of the whole batch's loss they shall be; None: the loss of the examples that they are given.
    share: _Share | None = None
    # Where the losses of single outputs go; None: where Keras brings them.
    parts: list[tf.Tensor] | None = None


_loss_mode = _LossMode()


@contextlib.contextmanager
def _loss_mode_of(**way: Any) -> Iterator[None]:
    """Within, Keras computes losses the given way; see `_Way`."""
    for name, value in way.items():
        setattr(_loss_mode, name, value)
    try:
        yield
    finally:
        for name in way:
            delattr(_loss_mode, name)


# Keras divides by what a replica has and by the number of replicas: wrong as soon as shares or masks differ.
def _patch(name: str, instead: Callable[..., tf.Tensor]) -> None:
    original = getattr(keras_loss, name)
    setattr(keras_loss, name, functools.wraps(original)(functools.partial(instead, original)))


_patch(
    "reduce_weighted_values",
    lambda original, *args, **keywords: (original if _loss_mode.share is None else _loss_mode.share.reduce)(
        *args, **keywords
    ),
)
for _scaling in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
    _patch(_scaling, lambda original, value: value if _loss_mode.alone else original(value))


def _capture(tracker: keras.metrics.Metric) -> None:
    """Makes `tracker` hand over an output's loss where `_Way.parts` asks for it."""
    if "update_state" in vars(tracker):
        return
    original = tracker.update_state

    def update_state(value: tf.Tensor, sample_weight: Any = None) -> None:
        if _loss_mode.parts is None:
            original(value, sample_weight)
        else:
            _loss_mode.parts.append(value)

    tracker.update_state = update_state
