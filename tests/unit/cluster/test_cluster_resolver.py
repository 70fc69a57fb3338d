"""TensorFlow's cluster resolvers, made from the environments that launchers set."""

import os

import pytest
import tensorflow as tf
from test_discovery import FOUR_ON_TWO, FOUR_ON_TWO_CYCLIC, TWO_ON_ONE, slurm, tf_config

from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery.cluster_resolver import SlurmClusterResolver, resolver

STOCK = tf.distribute.cluster_resolver.SlurmClusterResolver


def test_tensorflows_own_resolver_is_wrong_here(monkeypatch):
    """The reasons for the subclass; when TensorFlow mends one, the subclass can lose it."""
    for name, value in slurm(1, FOUR_ON_TWO_CYCLIC, "n[9-10]", "2(x2)", SLURM_DISTRIBUTION="cyclic").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    monkeypatch.setenv("PATH", "/nowhere")  # Without nvidia-smi.
    hosts = [address.split(":")[0] for address in STOCK().cluster_spec().as_dict()["worker"]]
    assert hosts == ["n10", "n10", "n9", "n9"]  # Slurm: n9, n10, n9, n10.
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[9-10]-ib")
    with pytest.raises(ValueError, match="Invalid hostlist"):
        STOCK()


@pytest.mark.parametrize(
    ("env", "addresses", "rank"),
    [
        (slurm(2, FOUR_ON_TWO, "n[9-10]", "2(x2)"), None, 2),
        (slurm(1, FOUR_ON_TWO_CYCLIC, "n[9-10]", "2(x2)", SLURM_DISTRIBUTION="cyclic"), None, 1),
        (tf_config("worker", 0, chief=["a:1"], worker=["b:1"]), None, 1),
        (slurm(0, TWO_ON_ONE, "n9", "2"), ["n9:1", "n9:2"], 0),
    ],
)
def test_a_resolver_for_each_launcher(env, addresses, rank):
    spec = environment.resolve(env, port_base=10000, port_count=10000)
    addresses = list(addresses or spec.addresses)
    made = resolver(spec, addresses, num_gpus=3)
    assert isinstance(made, SlurmClusterResolver) == isinstance(made, STOCK) == ("SLURM_JOB_ID" in env)
    assert made.cluster_spec().as_dict() == {"worker": addresses}
    assert (made.task_type, made.task_id, made.rpc_layer) == ("worker", rank, "grpc")
    if isinstance(made, STOCK):
        assert (made.get_task_info(), made.master()) == (("worker", rank), f"grpc://{addresses[rank]}")
    assert made.num_accelerators() == {"GPU": 3}
