"""Losses and metrics of Keras that are sums over the rows of a batch: in a step each replica computes its own part.

So a compiled model with Keras' losses and metrics gathers nothing. The parts of a loss are summed if the step reads it.
Updates of metrics are kept on each replica until the values of the metrics are read: then the sum over the replicas is
added to the variables.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.whole_batch import global_view
from tfdist.keras_fit.whole_batch.global_view import GlobalView
from tfdist.keras_fit.whole_batch.per_example import is_per_example
from tfdist.training import api as trainer


def call_loss(
    view: GlobalView,
    original: Callable[..., Any],
    loss: keras.Loss,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    """Calls a loss: on this replica's rows if it is known to be a mean or sum over rows, else on whole tensors."""
    given = (y_true, y_pred, sample_weight)
    if view.in_inner_graph:
        return original(loss, *given)
    flat = tf.nest.flatten(given)
    decided = view.next_call(loss, flat, is_per_example(loss) and view.has_rows(y_pred))
    if not decided.by_rows:
        value = original(loss, *given)
        return view.part_of(value) if view.in_parts else value
    own = tf.nest.pack_sequence_as(given, view.rows_of_arguments(flat, decided))
    of_rows = loss.reduction in (None, "none")
    with patching.set_in_block(view, in_layer=True, reduces=not of_rows):
        value = original(loss, *own)
    if of_rows:
        return view.whole_of(value, view.rows_per_example(y_pred))
    return value if view.in_parts else view.whole_sum(value)


def scale_loss(original: Callable[..., Any], value: Any) -> Any:
    """In a step, returns a loss as it is: it is that of the global batch.

    Keras would divide it by the number of replicas, or multiply it for logs.
    """
    return original(value) if global_view.of_step() is None else value


def reduce_loss(
    original: Callable[..., tf.Tensor],
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: str | None = None,
) -> tf.Tensor:
    """Replaces `keras.src.losses.loss.reduce_weighted_values` for a loss of this replica's rows: returns its part."""
    view = global_view.of_step()
    if view is None or not view.reduces or view.discovers:
        return original(values, sample_weight, mask, reduction, dtype)
    values = keras.ops.convert_to_tensor(values, dtype=dtype)
    weights = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction="sum")
    if weights is not None:
        values, weights = keras_loss.squeeze_or_expand_to_same_rank(values, tf.cast(weights, values.dtype))
        values = values * weights
    total, present = tf.reduce_sum(values), tf.cast(view.rows.present, values.dtype)
    if reduction == "sum":
        return total * present
    size = tf.cast(tf.size(values), values.dtype)
    if reduction == "mean_with_sample_weight" and weights is not None:
        divisor = trainer.sum_differentiable(tf.reduce_sum(weights) * present)
        return tf.math.divide_no_nan(total * present, divisor)
    if mask is not None:
        valid = trainer.sum_differentiable(tf.reduce_sum(tf.cast(mask, values.dtype)) * present)
        return tf.math.divide_no_nan(total * present * tf.cast(tf.size(mask), values.dtype) / size, valid)
    return total / size * tf.cast(view.rows.weight, values.dtype)


def compute_loss(
    view: GlobalView,
    original: Callable[..., Any],
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
) -> Any:
    """Returns Keras' sum of the losses of a compiled model. Each replica computes its part of it."""
    if view.in_inner_graph:
        return original(model, x, y, y_pred, sample_weight, training)
    losses = compiled_model.losses(model)
    known = losses is not None and all(is_per_example(one) for one in compiled_model.loss_objects(model))
    known = known and all(view.has_rows(one) for one in keras.tree.flatten(y_pred))
    if not view.next_call(model, [], known).by_rows:
        return original(model, x, y, y_pred, sample_weight, training)
    with patching.set_in_block(view, in_parts=True):
        parts = [losses(y, y_pred, sample_weight)]
    parts += [tf.cast(keras.ops.sum(view.part_of(loss)), parts[0].dtype) for loss in model.losses]
    return view.whole_sum(keras.ops.sum(parts) if len(parts) > 1 else parts[0])


def update_metric(metric: keras.Metric, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Updates a metric with the values of the global batch."""
    view = global_view.of_step()
    if view is None:
        return original(*args, **keywords)
    if view.on_rows is not None:
        view.note_update_in_layer(metric)
    if view.in_layer or view.in_inner_graph:
        return original(*args, **keywords)
    if view.in_parts:  # Keras' metric of the mean loss of an output gets this replica's part of the loss.
        args = (view.whole_sum(args[0]), *args[1:])
    flat = tf.nest.flatten((args, keywords))
    decided = view.next_call(metric, flat, _is_sum_of_rows(view, metric, flat))
    if not decided.by_rows:
        return original(*args, **keywords)
    if view.discovers:
        view.plan.updates.setdefault(id(metric), set()).update(view.indices_of(flat))
    elif id(metric) in view.plan.read_metrics:
        return original(*args, **keywords)
    is_number = not any(decided.arguments)
    own = [view.part_of(one) for one in flat] if is_number else view.rows_of_arguments(flat, decided)
    args, keywords = tf.nest.pack_sequence_as((args, keywords), own)
    if view.discovers:
        with patching.set_in_block(view, in_layer=True):
            return original(*args, **keywords)
    zeros = [(one, tf.zeros(one.shape, one.dtype)) for one in metric.variables]
    with patching.set_in_block(view, in_layer=True), keras.StatelessScope(state_mapping=zeros) as scope:
        original(*args, **keywords)
    for variable, _ in zeros:
        added = tf.convert_to_tensor(scope.get_current_value(variable))
        counts = view.rows.count > 0
        if is_number:  # All replicas add their parts, even without rows; the weight is added once.
            counts = tf.constant(True) if variable is metric.total else replicas_lib.replica_id() == 0
        view.added.append((variable, tf.where(counts, added, tf.zeros_like(added))))
    return None


def _is_sum_of_rows(view: GlobalView, metric: keras.Metric, flat: Sequence[Any]) -> bool:
    """Returns whether a metric adds values of rows, or a loss that is a sum of parts, to its variables."""
    if not is_per_example(metric) or not flat:
        return False
    if type(metric) is keras.metrics.Mean and view.is_sum(flat[0]):
        return not any(view.is_sum(one) or view.rows_per_example(one) for one in flat[1:])
    rows = [one for one in flat if isinstance(one, tf.Tensor) and one.shape.rank]
    return any(view.has_rows(one) for one in rows) and not any(view.is_sum(one) for one in flat)


def per_replica(size: int, aggregation: str) -> keras.Variable:
    """Returns a variable of zeros, float64 [size], of which each replica has its own value."""
    return keras.Variable(
        tf.zeros([size], tf.float64),
        dtype="float64",
        trainable=False,
        synchronization="on_read",
        aggregation=aggregation,
    )


class Pending:
    """Updates of metrics on each replica that are not yet added to the variables."""

    def __init__(self, cluster: Cluster, variables: Sequence[keras.Variable]):
        self.variables = list(variables)
        self._sizes = [math.prod(one.shape) for one in self.variables]
        self.numbers = per_replica(sum(self._sizes), "sum")
        self._flush_all = tf.function(lambda: cluster.strategy.run(self._flush), autograph=False)

    def add(self, added: Iterable[tuple[keras.Variable, tf.Tensor]]) -> None:
        """Adds a step's values, on a replica."""
        by_variable: dict[int, tf.Tensor] = {}
        for variable, value in added:
            value = tf.reshape(tf.cast(value, tf.float64), [-1])
            by_variable[id(variable)] = by_variable[id(variable)] + value if id(variable) in by_variable else value
        if by_variable:
            zeros = [tf.zeros([size], tf.float64) for size in self._sizes]
            pairs = zip(self.variables, zeros, strict=True)
            self.numbers.value.assign_add(tf.concat([by_variable.get(id(one), zero) for one, zero in pairs], 0))

    def flush(self) -> None:
        """Adds the sums over the replicas to the variables, on each replica. Collective."""
        if self.variables:
            self._flush_all()

    def _flush(self) -> None:
        total = trainer.sum_differentiable(tf.identity(self.numbers.value))
        for variable, value in zip(self.variables, tf.split(total, self._sizes), strict=True):
            variable.value.assign_add(tf.cast(tf.reshape(value, variable.shape), variable.dtype))
        self.numbers.value.assign(tf.zeros_like(self.numbers.value))
