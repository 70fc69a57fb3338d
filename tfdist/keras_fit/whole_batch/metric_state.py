"""The state of Keras' metrics within an epoch, as a checkpoint holds it: the part of each replica.

The sum over replicas alone would be added up in another order after a resume, and differ in the last bits.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config.patching import put


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
            row, first = tf.constant(rows)[replicas_lib.replica_id()], 0
            for variable in self.variables():
                size = math.prod(variable.shape)
                value = tf.reshape(row[first : first + size], variable.shape)
                variable.value.assign(tf.cast(value, variable.dtype))
                first += size

        tf.function(lambda: self.cluster.strategy.run(assign), autograph=False)()


def make_metric_state(cluster: Cluster, variables: Callable[[], list[keras.Variable]]) -> MetricState:
    """Makes the state of `variables`, which are read when the state is."""

    def numbers() -> tf.Tensor:
        # float64 holds the values of all dtypes of metrics.
        flat = [tf.reshape(tf.cast(tf.identity(variable.value), tf.float64), [-1]) for variable in variables()]
        return tf.concat(flat, axis=0)

    return MetricState(cluster=cluster, variables=variables, gather=cluster.make_all_gather(numbers))


def is_whole(variable: keras.Variable) -> bool:
    """Returns whether each replica has the value of the whole batch, and not its part of a sum."""
    return getattr(variable.value, "aggregation", None) == tf.VariableAggregation.ONLY_FIRST_REPLICA


def make_whole(variable: keras.Variable) -> None:
    """Makes the value of a metric's variable that of the first replica: all replicas compute the same one."""
    if hasattr(variable.value, "aggregation"):
        put(variable.value, "_aggregation", tf.VariableAggregation.ONLY_FIRST_REPLICA)
