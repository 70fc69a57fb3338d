"""Keras' metrics over several replicas: their state within an epoch, and those that are no sums over examples.

A checkpoint holds the part of each replica: the sum over replicas alone would be added up in another order after a
resume, and differ in the last bits. Metrics that are no sums are updated by every replica on the whole batch, so that
all have one value.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config.patching import patch, put
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch import shard_losses
from tfdist.keras_fit.whole_batch.per_example import is_per_example


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricState:
    """Reads and assigns the variables of metrics, of each replica; made by `make_metric_state`."""

    cluster: Cluster
    variables: Callable[[], list[keras.Variable]]
    # Returns float64 [num_replicas, numbers].
    gather: Callable[[], tf.Tensor]

    def read(self) -> list[Any]:
        """Returns the variables as JSON values. A collective: every worker must call it."""
        return [{"replicas": self.gather().numpy().tolist()}] if self.variables() else []

    def assign(self, values: list[Any]) -> None:
        """Assigns what `read` returned; called on every worker.

        On another number of replicas, replica 0 gets the sum, and all get the value of a metric of the whole batch.
        Values of an earlier release are a sum per variable.
        """
        if not (values and isinstance(values[0], dict)):
            for variable, value in zip(self.variables(), values, strict=True):
                variable.assign(value)
            return
        rows = np.array(values[0]["replicas"], np.float64)
        if len(rows) != self.cluster.num_replicas:
            whole = np.concatenate([np.full(math.prod(one.shape), is_whole(one)) for one in self.variables()])
            saved, rows = rows, np.zeros([self.cluster.num_replicas, rows.shape[1]])
            rows[0] = saved.sum(axis=0)
            rows[:, whole] = saved[0, whole]

        def assign() -> None:
            _assign_numbers(self.variables(), tf.constant(rows)[replicas_lib.replica_id()])

        tf.function(lambda: self.cluster.strategy.run(assign), autograph=False)()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelObjective:
    """What objectives of a Keras model have in common: its metrics, and their state."""

    model: keras.Model
    metric_state: MetricState
    # Whether a shard may be empty: there are fewer examples than replicas.
    may_be_empty: bool = True

    def reset(self) -> None:
        self.model.reset_metrics()

    def state(self) -> list[Any]:
        """Returns the metrics' variables, and others of `metric_state`, as JSON values. A collective of all workers."""
        return self.metric_state.read()

    def restore_state(self, values: list[Any]) -> None:
        self.metric_state.assign(values)

    def finalise_weights(self) -> None:
        """Assigns the averages of an optimizer with `use_ema` to the weights; called in `strategy.scope`."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)


def make_metric_state(cluster: Cluster, variables: Callable[[], list[keras.Variable]]) -> MetricState:
    """Makes the state of `variables`, which are read when the state is."""

    def numbers() -> tf.Tensor:
        return tf.concat(_flatten(variables()), axis=0)

    return MetricState(cluster=cluster, variables=variables, gather=cluster.make_all_gather(numbers))


def _flatten(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns this replica's values of each variable, float64 [numbers], which holds those of all dtypes of metrics."""
    return [tf.reshape(tf.cast(tf.convert_to_tensor(one.value), tf.float64), [-1]) for one in variables]


def _assign_numbers(variables: Sequence[keras.Variable], numbers: tf.Tensor) -> None:
    """Assigns the values of all variables, float64 [numbers], one after another, on this replica."""
    sizes = [math.prod(one.shape) for one in variables]
    for variable, value in zip(variables, tf.split(numbers, sizes), strict=True):
        variable.value.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))


def is_whole(variable: keras.Variable) -> bool:
    """Returns whether each replica has the value of the whole batch, and not its part of a sum."""
    return getattr(variable.value, "aggregation", None) == tf.VariableAggregation.ONLY_FIRST_REPLICA


def metrics_of(model: keras.Model) -> list[keras.Metric]:
    """Returns the metrics of a built model, those of `compile` one by one, and those in its attributes."""
    attributes = [value for value in vars(model).values() if isinstance(value, keras.Metric)]
    return [metric for one in (*model.metrics, *attributes) for metric in getattr(one, "metrics", None) or [one]]


@contextlib.contextmanager
def compute_on_whole_batch(cluster: Cluster, metrics: Sequence[keras.Metric]) -> Iterator[None]:
    """Gathers the arguments of those of `metrics` whose state is no sum over examples; restores their methods."""
    with contextlib.ExitStack() as stack:
        for metric in {id(metric): metric for metric in metrics}.values():
            if cluster.num_replicas == 1 or is_per_example(metric):
                continue
            for variable in metric.variables:
                # All replicas compute the same value.
                if hasattr(variable.value, "aggregation"):
                    put(variable.value, "_aggregation", tf.VariableAggregation.ONLY_FIRST_REPLICA)
            stack.enter_context(patch(metric, "update_state", _update))
        yield


def _update(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    rows = rows_lib.rows_now()
    if rows is None:
        return original(*args, **keywords)
    args, keywords = rows.gather_all((list(args), keywords))
    with shard_losses.mode(shard=None), rows_lib.current(None), rows_lib.draw_alike():
        return original(*args, **keywords)
