"""Connects the workers and creates the one `tf.distribute` strategy of this process."""

import dataclasses
import os
import platform
from collections.abc import Mapping

import keras
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.distribute import collective_all_reduce_strategy as collective
from tensorflow.python.eager import context

from tfdist import config as config_lib
from tfdist.cluster import interruption, malloc
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.discovery import cluster_resolver as cluster_resolver_lib
from tfdist.cluster.discovery import environment, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import heartbeat, startup_watchdog
from tfdist.cluster.rendezvous import preflight

_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The workers and devices of a run, known before any device is initialised."""

    worker_spec: WorkerSpec
    options: config_lib.Cluster
    # Indices into TensorFlow's list of GPUs in this process; empty: the replicas run on the CPU.
    gpus: tuple[int, ...]
    # Replicas of each worker.
    local_replicas: int

    @property
    def device_type(self) -> str:
        return "GPU" if self.gpus else "CPU"

    @property
    def num_workers(self) -> int:
        return self.worker_spec.num_workers

    @property
    def num_replicas(self) -> int:
        return self.num_workers * self.local_replicas


def plan(options: config_lib.Cluster | None = None, env: Mapping[str, str] | None = None) -> ClusterPlan:
    """Detects the workers from a Slurm step, TF_CONFIG, an MPI or PBS launcher; otherwise this process only.

    No device is initialised and no port is opened. See `environment.resolve` for the order and the variables.

    Raises:
        ValueError: variables are inconsistent or missing.
    """
    options = options or config_lib.Cluster()
    spec = environment.resolve(
        os.environ if env is None else env, port_base=options.port_base, port_count=options.port_count
    )
    gpus = worker_spec.visible_gpus(spec, len(tf.config.list_physical_devices("GPU")))
    if gpus and options.logical_devices > 1:
        raise ValueError(
            f"config.cluster.logical_devices={options.logical_devices} splits a CPU, but this worker has "
            f"{len(gpus)} GPUs: set it to 1, or hide the GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return ClusterPlan(
        worker_spec=spec,
        options=options,
        gpus=gpus,
        local_replicas=len(gpus) or options.logical_devices,
    )


def connect(
    plan_or_options: ClusterPlan | config_lib.Cluster | None = None,
    *,
    must_match: Mapping[str, str] | None = None,
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
) -> Cluster:
    """Connects to all other workers and creates the strategy; once per process, before other TensorFlow operations.

    Args:
        plan_or_options: the result of `plan`, or the options for it; None: default options.
        must_match: name -> value that must be equal on all workers; versions are always compared.
        workdir: a directory that all workers must share, created if missing; None: not checked.
        stop: this worker's stop request; None: it cannot be stopped.

    Returns:
        The cluster. Its strategy is MultiWorkerMirroredStrategy (NCCL with GPUs, RING without) for several workers,
        MirroredStrategy over the local GPUs or logical CPU devices for one.

    Raises:
        StopError: a worker received a stop request before all were connected.
        TimeoutError: some workers did not connect within `connect_seconds`; lists ranks and hosts.
        ValueError: the workers' `must_match` values differ, or the environment is not valid.
        OSError: this worker's port is in use, or `workdir` cannot be written or is not shared.
    """
    if not isinstance(plan_or_options, ClusterPlan):
        plan_or_options = plan(plan_or_options)
    spec = plan_or_options.worker_spec
    preflight.unset_proxies(os.environ)
    notes = [spec.note]
    if malloc.keep_freed(plan_or_options.options, os.environ):
        notes.append("malloc keeps freed memory; disable with --config.cluster.keep_freed_memory=false")
    listener = heartbeat.listen(spec)
    port = {"heartbeat_port": listener.getsockname()[1]} if listener else {}
    members = _connect_workers(plan_or_options, must_match or {}, workdir, port, stop)
    _set_visible_devices(plan_or_options)
    if plan_or_options.num_workers > 1:
        watchdog = startup_watchdog.deadline(spec.rank, members, plan_or_options.options.connect_seconds)
        with watchdog, interruption.blocked_signals():
            strategy = _multi_worker_strategy(plan_or_options, [worker["address"] for worker in members])
    else:
        devices = [f"/{plan_or_options.device_type}:{index}" for index in range(plan_or_options.local_replicas)]
        strategy = tf.distribute.MirroredStrategy(devices)
    assert strategy.num_replicas_in_sync == plan_or_options.num_replicas
    monitor = None
    if plan_or_options.num_workers > 1:
        monitor = heartbeat.start(rank=spec.rank, members=members, listener=listener, options=plan_or_options.options)
    return Cluster(
        strategy=strategy,
        rank=spec.rank,
        num_workers=plan_or_options.num_workers,
        num_replicas=plan_or_options.num_replicas,
        roster=(*(_roster_line(worker, plan_or_options) for worker in members), *filter(None, notes)),
        monitor=monitor,
    )


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`, or None."""
    return context.global_seed()


def _connect_workers(
    plan_: ClusterPlan,
    must_match: Mapping[str, str],
    workdir: os.PathLike | str | None,
    port: Mapping[str, int],
    stop: interruption.StopRequest | None,
) -> list[dict]:
    devices = f"{plan_.local_replicas} {plan_.device_type}{'s' if plan_.local_replicas > 1 else ''}"
    common = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "devices per worker": devices,
    }
    return preflight.rendezvous(
        plan_.worker_spec,
        must_match=common | dict(must_match),
        metadata={"devices": devices} | dict(port),
        exclusive=worker_spec.held_gpus(plan_.worker_spec, plan_.gpus),
        seconds=plan_.options.connect_seconds,
        workdir=workdir,
        stop=stop,
    )


def _set_visible_devices(plan_: ClusterPlan) -> None:
    if plan_.gpus:
        # Not with CUDA_VISIBLE_DEVICES: the value of the site or Slurm (MIG UUIDs, for example) must not change.
        listed = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices([listed[index] for index in plan_.gpus], "GPU")
    elif plan_.local_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(plan_.local_replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)


def _multi_worker_strategy(plan_: ClusterPlan, addresses: list[str]) -> tf.distribute.Strategy:
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        # Twice the limit of heartbeat.py, which therefore detects a loss first and names the worker.
        heartbeat_timeout_in_ms=int(2 * plan_.options.heartbeat_seconds * 1000),
        coordinated_jobs=[collective.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(addresses))],
    )
    _send_in_large_chunks()
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if plan_.device_type == "GPU" else communication.RING
    )
    cluster_resolver = cluster_resolver_lib.resolver(
        plan_.worker_spec, addresses, num_gpus=plan_.local_replicas if plan_.device_type == "GPU" else 0
    )
    extended = collective.CollectiveAllReduceExtended
    original = extended._initialize_local_devices
    if plan_.device_type == "CPU" and plan_.local_replicas > 1:
        # TensorFlow gives a CPU worker one replica; tests need several, as on a worker with several GPUs.
        def logical_devices(self, cluster_resolver, worker_device):
            del self, cluster_resolver
            return tuple(f"{worker_device}/device:CPU:{i}" for i in range(plan_.local_replicas)), "CPU"

        extended._initialize_local_devices = logical_devices
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver, communication_options=options)
    finally:
        extended._initialize_local_devices = original


def _send_in_large_chunks() -> None:
    # TensorFlow sends in chunks of 4 KB and copies each: a sixth of the CPU time of an all-reduce.
    session = context.context()
    settings = session._config or config_pb2.ConfigProto()
    if not settings.experimental.recv_buf_max_chunk:
        settings.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    session._config = settings


def _roster_line(worker: dict, plan_: ClusterPlan) -> str:
    if plan_.num_workers == 1:
        communication = "in this process"
    else:
        communication = f"{'NCCL' if plan_.device_type == 'GPU' else 'RING over gRPC'} at {worker['address']}"
    return (
        f"worker {worker['rank']} of {plan_.num_workers}{' (chief)' if worker['rank'] == 0 else ''}: "
        f"host {worker['host']}, pid {worker['pid']}, {worker['devices']}, {communication}"
    )
