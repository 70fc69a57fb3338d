"""Variables made in cluster.scope() begin with the chief's values on all workers."""

import keras
import numpy as np
import on_workers
import tensorflow as tf

from tfdist import config
from tfdist.cluster import strategy


def make_variables(workdir):
    """Makes variables with other values on each worker.

    Returns:
        The bytes of each of them on each device of this worker, and the error where workers make different numbers.
    """
    cluster = strategy.connect(config.ClusterOptions(logical_devices=2), workdir=workdir)
    keras.utils.set_random_seed(cluster.rank)  # So the values differ.
    own = float(cluster.rank) + 0.3
    with cluster.scope(), cluster.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        others = [
            *(tf.Variable(own), tf.Variable([own, own], dtype=tf.bfloat16), tf.Variable(cluster.rank == 1)),
            *(tf.Variable(tf.cast(cluster.rank, tf.uint8)), tf.Variable(lambda: tf.random.normal([5]))),
            *(tf.Variable("text"), tf.Variable(-0.0 if cluster.rank else 0.0)),
        ]
    assert own == float(cluster.rank) + 0.3
    variables = [*(weight.value for weight in model.weights), *(one for one in others if one.dtype != tf.string)]
    local = cluster.strategy.experimental_local_results
    found, error = [[part.numpy().tobytes() for part in local(one)] for one in variables], ""
    try:
        with cluster.scope():
            _ = [tf.Variable(1.0) for _ in range(1 + cluster.rank)]
    except ValueError as raised:
        error = str(raised)
    cluster.leave()
    return found, error


def test_all_workers_and_devices_have_the_bits_of_the_chief(tmp_path):
    (chief, error), (other, same) = on_workers.call(make_variables, tmp_path, workers=2, hosts=["127.0.0.1"] * 2)
    assert len(chief) == 8 and chief == other
    assert all(len(parts) == 2 and parts[0] == parts[1] for parts in chief)
    assert np.frombuffer(chief[2][0], np.float32) == np.float32(0.3) and any(chief[0][0])
    for message in (error, same):
        assert "numbers of variables in cluster.scope(), by rank: 1, 2. Build the same" in message
