"""TensorFlow's cluster resolvers for a `WorkerSpec`. They neither read nor write environment variables."""

import collections
from collections.abc import Sequence

import tensorflow as tf

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def resolver(
    spec: WorkerSpec, addresses: Sequence[str], *, num_gpus: int
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns the resolver for MultiWorkerMirroredStrategy: all workers are tasks of the job "worker", in rank order.

    Args:
        addresses: "host:port" of each worker; see `rendezvous.rendezvous`.
        num_gpus: GPUs that this worker uses.
    """
    if spec.launcher == "slurm":
        return SlurmClusterResolver(spec, addresses, num_gpus=num_gpus)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(addresses)}),
        task_type="worker",
        task_id=spec.rank,
        num_accelerators={"GPU": num_gpus},
        rpc_layer="grpc",
    )


class SlurmClusterResolver(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """TensorFlow's SlurmClusterResolver with the tasks of a Slurm step that launchers/slurm.py finds.

    Differences from the parent class: hosts keep Slurm's order, which is the order of the ranks; cyclic and plane
    distributions are supported, and the layout is verified against Slurm's variables of this task; all notations of
    host lists are supported; ports depend on job and step, so several steps can share a host; TensorFlow counts the
    GPUs, not nvidia-smi, and there may be none; CUDA_VISIBLE_DEVICES is not changed; all tasks are of job "worker".

    Args:
        addresses: "host:port" of each task.
        num_gpus: GPUs that this task uses.
    """

    def __init__(self, spec: WorkerSpec, addresses: Sequence[str], *, num_gpus: int):
        self._rank, self._addresses, self._num_gpus = spec.rank, list(addresses), num_gpus
        tasks_per_node = collections.Counter(hostlist.split_address(address)[0] for address in addresses)
        # Zero GPUs: otherwise the parent class runs nvidia-smi and sets CUDA_VISIBLE_DEVICES.
        super().__init__({"worker": spec.num_workers}, spec.port, 0, 0, dict(tasks_per_node), False, "grpc")
        self.task_type, self.task_id = "worker", spec.rank

    def _resolve_own_rank(self) -> int:
        return self._rank

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns the addresses of all tasks."""
        return tf.train.ClusterSpec({"worker": self._addresses})

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None) -> dict[str, int]:
        """Returns the number of GPUs of each task; the arguments are not used."""
        return {"GPU": self._num_gpus}
