"""The threads for ops of workers with one core each."""

import json
import os

import on_workers
import pytest
import tensorflow as tf
from parameters import slow

from tfdist import config
from tfdist.cluster import strategy


def connect_on_one_core(cores, workdir):
    """Connects a worker that has one core; returns the threads for ops that tfdist sets, a sum, and if it says so."""
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    cluster = strategy.connect(config.ClusterOptions(), workdir=workdir)
    total = cluster.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([])))
    said = any("two threads for ops" in line for line in cluster.roster.lines())
    found = tf.config.threading.get_inter_op_parallelism_threads(), float(total), said
    cluster.leave()
    return found


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a core")
@pytest.mark.parametrize(
    ("hosts", "variables", "expected"),
    [
        (("127.0.0.1", "127.0.0.2"), {}, (2, 2.0, True)),
        slow(("127.0.0.1", "127.0.0.1"), {}, (0, 2.0, False)),
        slow(("127.0.0.1", "127.0.0.2"), {"TF_NUM_INTEROP_THREADS": "3"}, (0, 2.0, False)),
    ],
)
def test_workers_with_one_core_on_several_hosts_have_two_threads_for_ops(tmp_path, hosts, variables, expected):
    cores = sorted(os.sched_getaffinity(0))
    options = {"workers": 2, "hosts": hosts, "variables": variables}
    assert on_workers.call(connect_on_one_core, cores, tmp_path, **options) == [expected] * 2
