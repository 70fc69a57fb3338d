"""Variables made in cluster.scope() begin with the chief's values on all workers."""

import sys

import numpy as np
import processes
import topologies

SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
from tfdist import config
from tfdist.cluster import process_exit, strategy

def run():
    cluster = strategy.connect(config.ClusterOptions(logical_devices=2), workdir=sys.argv[1])
    keras.utils.set_random_seed(cluster.rank)  # So the values differ.
    own = float(cluster.rank) + 0.3
    with cluster.scope():
        with cluster.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        others = [
            tf.Variable(own), tf.Variable([own, own], dtype=tf.bfloat16), tf.Variable(cluster.rank == 1),
            tf.Variable(tf.cast(cluster.rank, tf.uint8)), tf.Variable(lambda: tf.random.normal([5])),
            tf.Variable("text"), tf.Variable(-0.0 if cluster.rank else 0.0),
        ]
    assert own == float(cluster.rank) + 0.3
    values = {}
    for place, variable in enumerate([*(weight.value for weight in model.weights), *others]):
        parts = [part.numpy() for part in cluster.strategy.experimental_local_results(variable)]
        assert len(parts) == 2
        if variable.dtype == tf.string:
            continue
        for part, array in enumerate(parts):
            values[f"{place}/{part}"] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    np.savez(f"{sys.argv[1]}/{cluster.rank}.npz", **values)
    try:
        with cluster.scope():
            more = [tf.Variable(1.0) for _ in range(1 + cluster.rank)]
    except ValueError as error:
        print(error)
    return cluster.leave() or 0

process_exit.run_and_exit(run)
"""


def test_all_workers_and_devices_have_the_bits_of_the_chief(tmp_path):
    codes, outputs = processes.run(
        [[sys.executable, "-c", SCRIPT, str(tmp_path)]] * 2, topologies.environments(2, ["127.0.0.1"] * 2)
    )
    assert codes == [0, 0], outputs
    chief, other = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    assert len(chief.files) == 2 * 8
    for name in chief.files:
        np.testing.assert_array_equal(chief[name], other[name])
        np.testing.assert_array_equal(chief[name], chief[f"{name[:-1]}0"])
    assert chief["2/0"].view(np.float32) == np.float32(0.3) and chief["0/0"].any()
    for output in outputs:
        assert "numbers of variables in cluster.scope(), by rank: 1, 2. Build the same" in output
