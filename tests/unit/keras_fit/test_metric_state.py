"""The state of metrics in a checkpoint: the part of each replica, on any number of them."""

import keras
import pytest
import tensorflow as tf

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.whole_batch import metric_state


@pytest.mark.parametrize(
    "saved",
    [
        [{"replicas": [[6.0, 4.0]]}],
        [{"replicas": [[1.0, 1.0], [5.0, 3.0]]}],  # On two replicas.
        [6.0, 4.0],  # By an earlier release: the sum of each variable.
    ],
)
def test_a_saved_state_is_assigned_on_one_replica(saved):
    cluster = strategy.connect(c.ClusterOptions())
    with cluster.scope():
        metric = keras.metrics.Mean()
    state = metric_state.make_metric_state(cluster, lambda: metric.variables)
    state.assign(saved)
    assert state.read() == [{"replicas": [[6.0, 4.0]]}]
    assert float(metric.result()) == 1.5


def test_without_metrics_there_is_no_state():
    state = metric_state.make_metric_state(strategy.connect(c.ClusterOptions()), list)
    state.assign([])
    assert state.read() == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32"])
def test_results_of_all_dtypes_are_numbers_of_python_and_arrays(dtype):
    assert compiled_model.as_keras(tf.constant(3, dtype)) == 3.0
    assert compiled_model.as_keras(tf.constant([1, 2], dtype)).tolist() == [1, 2]
