"""TensorFlow's cluster resolvers, made from the environments that launchers set."""

import json
import os
import subprocess
import sys

import forked
import pytest
import tensorflow as tf
from launching import free_ports
from test_discovery import FOUR_ON_TWO, FOUR_ON_TWO_CYCLIC, STEPS, TWO_ON_ONE, slurm

from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery.cluster_resolver import SlurmClusterResolver, resolver
from tfdist.cluster.discovery.worker_spec import WorkerSpec

STOCK = tf.distribute.cluster_resolver.SlurmClusterResolver


@pytest.fixture(autouse=True)
def no_nvidia_smi(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize("name", STEPS)
def test_slurm_resolver_follows_slurm(name):
    nodelist, tasks_per_node, distribution, where = STEPS[name]
    for rank in range(len(where)):
        env = slurm(rank, where, nodelist, tasks_per_node, **distribution)
        made = SlurmClusterResolver(env=env)
        assert isinstance(made, STOCK)
        addresses = made.cluster_spec().as_dict()["worker"]
        assert [address.rpartition(":")[0] for address in addresses] == [node for node, _, _ in where]
        assert (made.task_type, made.task_id, made.get_task_info()) == ("worker", rank, ("worker", rank))
        assert made.master() == f"grpc://{addresses[rank]}"
        assert made.num_accelerators() == {"GPU": 0}


def test_tensorflows_own_resolver_is_wrong_here(monkeypatch):
    """The reasons for the subclass; when TensorFlow mends one, the subclass can lose it."""
    for name, value in slurm(1, FOUR_ON_TWO_CYCLIC, "n[9-10]", "2(x2)", SLURM_DISTRIBUTION="cyclic").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    hosts = [address.split(":")[0] for address in STOCK().cluster_spec().as_dict()["worker"]]
    assert hosts == ["n10", "n10", "n9", "n9"]  # Slurm: n9, n10, n9, n10.
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[9-10]-ib")
    with pytest.raises(ValueError, match="Invalid hostlist"):
        STOCK()


def test_slurm_resolver_reads_the_process_environment_and_changes_nothing(monkeypatch):
    env = slurm(1, TWO_ON_ONE, "n9", "2", CUDA_VISIBLE_DEVICES="MIG-a,MIG-b", SLURM_GPUS_ON_NODE="2")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    made = SlurmClusterResolver(port_base=30000, port_count=100)
    addresses = made.cluster_spec().as_dict()["worker"]
    assert all(30000 <= int(address.split(":")[1]) < 30100 for address in addresses)
    assert made.num_accelerators() == {"GPU": 0}
    assert dict(os.environ) == before


def test_slurm_resolver_refuses_invalid_variables():
    with pytest.raises(
        ValueError, match="these variables are not set: SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NUM_TASKS"
    ):
        SlurmClusterResolver(env={})
    env = slurm(0, FOUR_ON_TWO, "n[9-10]", "2(x2)")
    with pytest.raises(ValueError, match=r"gpus_per_task must be at most 0, .* of the 0 GPUs .* Received: 1"):
        SlurmClusterResolver(gpus_per_task=1, env=env)
    with pytest.raises(ValueError, match="arbitrary distribution"):
        SlurmClusterResolver(env=env | {"SLURM_DISTRIBUTION": "arbitrary"})


def test_a_resolver_for_each_launcher():
    def place(env: dict[str, str]) -> WorkerSpec:
        return environment.resolve(env, port_base=10000, port_count=10000)

    step = place(slurm(2, FOUR_ON_TWO, "n[9-10]", "2(x2)"))
    made = resolver(step, num_gpus=3)
    assert isinstance(made, SlurmClusterResolver)
    assert made.cluster_spec().as_dict() == {"worker": list(step.addresses)}
    assert (made.task_type, made.task_id, made.rpc_layer) == ("worker", 2, "grpc")
    assert made.num_accelerators() == {"GPU": 3}

    cluster = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    made = resolver(place({"TF_CONFIG": json.dumps(cluster)}))
    assert made.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"]}
    assert (made.task_type, made.task_id, made.rpc_layer) == ("worker", 1, "grpc")
    assert made.num_accelerators() == {"GPU": 0}

    # What the rendezvous found out, where the spec does not know it.
    arbitrary = place(slurm(0, TWO_ON_ONE, "n9", "2", SLURM_DISTRIBUTION="arbitrary"))
    made = resolver(arbitrary, ["n9:1", "n9:2"])
    assert isinstance(made, SlurmClusterResolver)
    assert made.cluster_spec().as_dict() == {"worker": ["n9:1", "n9:2"]}

    assert resolver(place({})).cluster_spec().as_dict() == {}


# A script that uses the rendezvous and the resolver alone; its node is this machine.
SCRIPT = """
import os, time
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import rendezvous
ports = {"port_base": int(os.environ["PORT_BASE"]), "port_count": 16}
spec = environment.resolve(os.environ, **ports)
roster = rendezvous.rendezvous(spec, must_match={}, seconds=60.0)
import tensorflow as tf
from tfdist.cluster.discovery.cluster_resolver import SlurmClusterResolver
strategy = tf.distribute.MultiWorkerMirroredStrategy(SlurmClusterResolver(**ports))

@tf.function
def total():
    rank = tf.constant(spec.rank + 1.0)
    return strategy.reduce("SUM", strategy.run(lambda: tf.identity(rank)), axis=None)

assert strategy.num_replicas_in_sync == 2
print("total", float(total()), [worker["address"] for worker in roster])
from tensorflow.python.eager import context
context.context().wait_at_barrier("done", 60_000)
"""


def free_pair() -> int:
    """Finds a port that is free together with the next one, and gives neither to another test."""
    while True:
        first, second = free_ports(2)
        if second == first + 1:
            return first


@pytest.mark.workers
def test_tensorflows_servers_start_where_the_rendezvous_listened():
    base = free_pair()
    processes = []
    for rank in range(2):
        where = [("localhost", 0, 0), ("localhost", 0, 1)]
        env = slurm(rank, where, "localhost", "2", PORT_BASE=str(base), CUDA_VISIBLE_DEVICES="")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(forked.Popen([sys.executable, "-c", SCRIPT], env=dict(os.environ) | env, **pipes))
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    expected = f"total 3.0 ['localhost:{base}', 'localhost:{base + 1}']\n"
    assert [stdout for stdout, _ in outputs] == [expected, expected]
