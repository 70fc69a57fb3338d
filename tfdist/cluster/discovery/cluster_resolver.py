"""TensorFlow's cluster resolvers for a `WorkerSpec`. Reads the environment, and never writes it."""

import collections
import os
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdist.cluster.discovery import gpus, hostlist
from tfdist.cluster.discovery.launchers import slurm
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def resolver(
    spec: WorkerSpec, addresses: Sequence[str] | None = None, *, num_gpus: int | None = None
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns the resolver for MultiWorkerMirroredStrategy: all workers are tasks of the job "worker", in rank order.

    Args:
        addresses: "host:port" of each worker, if `spec` has none; see `rendezvous.rendezvous`.
        num_gpus: GPUs that this worker uses; None: all that are visible to TensorFlow at the time.
    """
    addresses = list(spec.addresses if addresses is None else addresses)
    if spec.launcher == "slurm" and addresses:
        return SlurmClusterResolver(gpus_per_task=num_gpus, auto_set_gpu=False, spec=spec, addresses=addresses)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        # An empty cluster: this process only.
        tf.train.ClusterSpec({"worker": addresses} if addresses else {}),
        task_type="worker",
        task_id=spec.rank,
        num_accelerators={"GPU": _num_visible_gpus() if num_gpus is None else num_gpus},
        rpc_layer="grpc",
    )


class SlurmClusterResolver(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """A corrected version of TensorFlow's SlurmClusterResolver; can also be used in other scripts.

        strategy = tf.distribute.MultiWorkerMirroredStrategy(SlurmClusterResolver())

    Differences from TensorFlow's: hosts keep Slurm's order, which is the order of the ranks; cyclic and plane
    distributions are supported, and the layout is verified against Slurm's variables of this task; all notations of
    host lists are supported; ports depend on the job and the step, so two of them can share a host; TensorFlow counts
    the GPUs, without nvidia-smi, and there may be none; CUDA_VISIBLE_DEVICES is not changed; all are tasks of "worker".

    Args:
        port_base: ports lie in [port_base, port_base + port_count).
        gpus_per_task: GPUs of each task. None: unless Slurm has assigned them, they are divided evenly among the
            tasks of a node.
        auto_set_gpu: hide other tasks' GPUs from this process, with `tf.config.set_visible_devices`; must run
            before TensorFlow's first operation.
        rpc_layer: the protocol between TensorFlow's servers.
        env: the environment; None: that of this process.
        spec: the worker spec if it is known; `env` and ports are then not used.
        addresses: "host:port" of each task; None: those of the spec.

    Raises:
        ValueError: not a Slurm step of a known distribution, or too few tasks or GPUs.
    """

    def __init__(
        self,
        *,
        port_base: int = 10000,
        port_count: int = 10000,
        gpus_per_task: int | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str = "grpc",
        env: Mapping[str, str] | None = None,
        spec: WorkerSpec | None = None,
        addresses: Sequence[str] | None = None,
    ):
        if spec is None:
            spec = slurm.step(os.environ if env is None else env, port_base=port_base, port_count=port_count)
        self._spec = spec
        self._addresses = list(spec.addresses if addresses is None else addresses)
        tasks_per_node = collections.Counter(hostlist.split_address(address)[0] for address in self._addresses)
        # Zero GPUs: otherwise the parent class runs nvidia-smi and sets CUDA_VISIBLE_DEVICES.
        super().__init__({"worker": spec.num_workers}, port_base, 0, 0, dict(tasks_per_node), False, rpc_layer)
        self._num_gpus = gpus_per_task
        if auto_set_gpu:
            _show_gpus(spec, gpus_per_task)
        self.task_type, self.task_id = "worker", spec.rank

    def _resolve_own_rank(self) -> int:
        return self._spec.rank

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns the addresses of all tasks."""
        return tf.train.ClusterSpec({"worker": self._addresses})

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None) -> dict[str, int]:
        """Returns the number of GPUs of each task; the arguments are not used."""
        return {"GPU": _num_visible_gpus() if self._num_gpus is None else self._num_gpus}


def _show_gpus(spec: WorkerSpec, num_gpus: int | None) -> None:
    listed = tf.config.list_physical_devices("GPU")
    mine = gpus.visible_gpus(spec, len(listed))
    if num_gpus is not None and num_gpus > len(mine):
        raise ValueError(
            f"gpus_per_task must be at most {len(mine)}, this task's share of the {len(listed)} GPUs that TensorFlow "
            f"lists. Received: {num_gpus}"
        )
    if len(mine[:num_gpus]) < len(listed):
        tf.config.set_visible_devices([listed[index] for index in mine[:num_gpus]], "GPU")


def _num_visible_gpus() -> int:
    # Unlike listing logical devices, this does not initialise TensorFlow's context.
    return len(tf.config.get_visible_devices("GPU"))
