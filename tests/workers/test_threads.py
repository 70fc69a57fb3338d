"""The threads for ops of workers with one core each."""

import os
import sys

import processes
import pytest
import topologies

SCRIPT = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[2])})
import tensorflow as tf
from tfdist import config
from tfdist.cluster import process_exit, strategy

def run():
    cluster = strategy.connect(config.ClusterOptions(), workdir=sys.argv[1])
    total = cluster.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([])))
    print("threads", tf.config.threading.get_inter_op_parallelism_threads(), "sum", float(total))
    print("line" if any("two threads for ops" in line for line in cluster.roster.lines()) else "no line")
    return cluster.leave() or 0

process_exit.run_and_exit(run)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a core")
@pytest.mark.parametrize(
    ("hosts", "variables", "expected"),
    [
        (("127.0.0.1", "127.0.0.2"), {}, "threads 2 sum 2.0\nline\n"),
        pytest.param(("127.0.0.1", "127.0.0.1"), {}, "threads 0 sum 2.0\nno line\n", marks=pytest.mark.slow),
        pytest.param(
            ("127.0.0.1", "127.0.0.2"),
            {"TF_NUM_INTEROP_THREADS": "3"},
            "threads 0 sum 2.0\nno line\n",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_workers_with_one_core_on_several_hosts_have_two_threads_for_ops(tmp_path, hosts, variables, expected):
    cores = sorted(os.sched_getaffinity(0))
    codes, outputs = processes.run(
        [[sys.executable, "-c", SCRIPT, str(tmp_path), str(cores[rank % len(cores)])] for rank in range(2)],
        topologies.environments(2, hosts, **variables),
    )
    assert codes == [0, 0], outputs
    assert all(expected in output for output in outputs), outputs
