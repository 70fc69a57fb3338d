"""Connects the workers and creates the one `tf.distribute` strategy of this process."""

import contextlib
import dataclasses
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as collective
from tensorflow.python.distribute import values
from tensorflow.python.eager import context

from tfdist import config as config_lib
from tfdist.cluster import first_collective, interruption, malloc
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gpu_software, machine, onednn
from tfdist.cluster.discovery import cluster_resolver as cluster_resolver_lib
from tfdist.cluster.discovery import environment, host_names, worker_spec
from tfdist.cluster.discovery.roster import Roster, WorkerInfo
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import heartbeat, startup_watchdog
from tfdist.cluster.rendezvous import preflight
from tfdist.cluster.wire import keys as keys_lib
from tfdist.cluster.wire.keys import Keys
from tfdist.config import patching

_CHUNK_BYTES = 1 << 20
# Parts of TensorFlow's messages if devices are configured after the first operation.
_TOO_LATE = ("must be configured at program startup", "cannot be modified after being initialized")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The workers and devices of a run, known before any device is initialised."""

    worker_spec: WorkerSpec
    options: config_lib.ClusterOptions
    # Indices into TensorFlow's list of GPUs in this process; empty: the replicas run on the CPU.
    gpus: tuple[int, ...]
    # Replicas of each worker.
    local_replicas: int
    # Of the collectives: "nccl" or "ring".
    implementation: str

    @property
    def device_type(self) -> str:
        return "GPU" if self.gpus else "CPU"

    @property
    def num_workers(self) -> int:
        return self.worker_spec.num_workers

    @property
    def num_replicas(self) -> int:
        return self.num_workers * self.local_replicas


def plan(
    options: config_lib.ClusterOptions | None = None,
    env: Mapping[str, str] | None = None,
    *,
    communication: config_lib.Communication | None = None,
) -> ClusterPlan:
    """Detects the workers from a Slurm step, TF_CONFIG, an MPI or PBS launcher; otherwise this process only.

    No device is initialised and no port is opened. See `environment.resolve` for the order and the variables.

    Args:
        options: ports, timeouts and devices; None: the defaults.
        env: the environment; None: that of this process.
        communication: `config.communication`; None: the defaults.

    Raises:
        ValueError: variables are inconsistent or missing; this worker has fewer GPUs than `options.gpus` names, or
            none for NCCL; NCCL does not support `communication.dtype`.
        GpusNotFoundError: this host has GPUs, but TensorFlow lists none.
    """
    options, communication = options or config_lib.ClusterOptions(), communication or config_lib.Communication()
    env = os.environ if env is None else env
    spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    seconds = worker_spec.connect_seconds(options.connect_seconds, spec.num_workers)
    options = dataclasses.replace(options, connect_seconds=seconds)
    gpus: tuple[int, ...] = ()
    if options.gpus != 0:
        num_listed = gpu_software.num_listed(env)
        gpus = worker_spec.select_gpus(worker_spec.visible_gpus(spec, num_listed), options.gpus)
    if gpus and options.logical_devices > 1:
        raise ValueError(
            f"config.cluster.logical_devices={options.logical_devices} splits a CPU, but this worker has "
            f"{len(gpus)} GPUs: set it to 1, or config.cluster.gpus to 0."
        )
    local_replicas = len(gpus) or options.logical_devices
    return ClusterPlan(
        worker_spec=spec,
        options=options,
        gpus=gpus,
        local_replicas=local_replicas,
        implementation=_implementation(communication, gpus, spec.num_workers * local_replicas),
    )


def _implementation(communication: config_lib.Communication, gpus: tuple[int, ...], num_replicas: int) -> str:
    """Returns "nccl" or "ring"; see `plan` for the errors."""
    chosen = communication.implementation
    if chosen == "auto":
        chosen = "nccl" if gpus else "ring"
    if chosen == "nccl" and not gpus:
        raise ValueError(
            'config.communication.implementation="nccl" needs GPUs, but the replicas of this worker run on the CPU: '
            'set it to "auto" or "ring".'
        )
    if chosen == "nccl" and communication.dtype == "bfloat16" and num_replicas > 1:
        raise ValueError(
            'config.communication.dtype="bfloat16": TensorFlow cannot sum bfloat16 with NCCL. Set it to "float16", '
            'which sends as many bytes, or to "float32"; or set config.communication.implementation to "ring".'
        )
    return chosen


def connect(
    plan_or_options: ClusterPlan | config_lib.ClusterOptions | None = None,
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
        ValueError: the workers' `must_match` values differ, the environment is not valid, or there is no key.
        OSError: this worker's port is in use, or `workdir` cannot be written or is not shared.
    """
    planned = plan_or_options if isinstance(plan_or_options, ClusterPlan) else plan(plan_or_options)
    spec = planned.worker_spec
    preflight.unset_proxies(os.environ)
    details = [onednn.describe(onednn.current(os.environ)), *_configure_malloc(planned)]
    listener, watchdog_listener = heartbeat.listen(spec), startup_watchdog.listen(spec)
    ports = {"heartbeat_port": listener, "watchdog_port": watchdog_listener}
    keys = keys_lib.load(preflight.local_path(workdir), os.environ) if spec.num_workers > 1 else None
    members = _connect_workers(planned, must_match or {}, workdir, ports, stop, keys)
    options, seconds = planned.options, planned.options.connect_seconds
    with contextlib.ExitStack() as start:
        if planned.num_workers > 1:  # Before the devices are listed: a worker may die meanwhile.
            start.enter_context(startup_watchdog.deadline(spec.rank, members, seconds, watchdog_listener, keys))
        details += _configure_devices(planned, members)
        software = gpu_software.describe(os.environ)
        notes = [spec.note, *gpu_software.notes(software), *_notes(planned, members)]
        if planned.num_workers > 1:
            with interruption.block_signals():
                strategy = _multi_worker_strategy(planned, [worker["address"] for worker in members])
        else:
            strategy = _mirrored_strategy(planned)
    assert strategy.num_replicas_in_sync == planned.num_replicas
    _add_number_conversions()
    keys = keys or Keys(())  # One worker sends no messages, and only watches itself.
    monitor = heartbeat.start(rank=spec.rank, members=members, listener=listener, options=options, keys=keys)
    if planned.num_workers > 1:
        first_collective.check(strategy, monitor, first_collective.limit(seconds, software))
    return Cluster(
        strategy=strategy,
        rank=spec.rank,
        num_workers=planned.num_workers,
        num_replicas=planned.num_replicas,
        implementation=planned.implementation,
        roster=_make_roster(members, planned, [*filter(None, notes)], details),
        monitor=monitor,
    )


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`, or None."""
    return context.global_seed()


@contextlib.contextmanager
def explain_late_configuration() -> Iterator[None]:
    """Replaces the error of a block that configures devices or collectives too late by one that names the call to move.

    Raises:
        RuntimeError: TensorFlow has run an operation, or listed logical devices, before.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _TOO_LATE):
            raise
        raise RuntimeError(
            "tfdist.connect() must come before all other operations of TensorFlow in this process, such as tf.constant "
            "or a model: move it to the top of the script, after the imports. In a notebook, restart the "
            f"kernel. TensorFlow: {error}"
        ) from error


def _configure_malloc(planned: ClusterPlan) -> list[str]:
    on_cpus = planned.num_workers > 1 and planned.device_type == "CPU"
    if on_cpus and malloc.keep_freed_memory(planned.options, os.environ):
        return ["malloc keeps freed memory; disable with --config.cluster.keep_freed_memory=false"]
    return []


def _add_second_thread(planned: ClusterPlan, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Gives a worker with one core a second thread for ops, if the workers are on several hosts.

    With one thread, TensorFlow sends the first gradients after it has computed the last. Measured with ResNet50V2 over
    1 Gbit/s (docs/speed.md). On one host nothing is gained, and a step of a small network takes longer.
    """
    hosts = {worker["address"].rpartition(":")[0] for worker in members}
    chosen = os.environ.get("TF_NUM_INTEROP_THREADS") or tf.config.threading.get_inter_op_parallelism_threads()
    if planned.device_type != "CPU" or len(hosts) < 2 or chosen or machine.num_cores() > 1:
        return []
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return ["two threads for ops on one core, so that gradients are sent during the backward pass"]


def _describe_mixed_processors(members: Sequence[Mapping[str, Any]]) -> str:
    names = sorted({worker["processor"] for worker in members})
    if len(names) < 2:
        return ""
    return f"the workers have different processors, which round differently: {', '.join(names)}"


def _notes(planned: ClusterPlan, members: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns notes about the processors of all workers, and about GPUs of this host that are not used."""
    unused = "" if planned.gpus or planned.options.gpus == 0 else machine.unused_gpus(machine.read(os.environ))
    return onednn.advice(onednn.current(os.environ)), _describe_mixed_processors(members), unused


def _connect_workers(
    planned: ClusterPlan,
    must_match: Mapping[str, str],
    workdir: os.PathLike | str | None,
    listeners: Mapping[str, socket.socket | None],
    stop: interruption.StopRequest | None,
    keys: Keys | None,
) -> list[dict]:
    host_names.check(planned.worker_spec, os.environ)
    devices = f"{planned.local_replicas} {planned.device_type}{'s' if planned.local_replicas > 1 else ''}"
    ports = {name: one.getsockname()[1] for name, one in listeners.items() if one is not None}
    common = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "devices per worker": devices,
        f"oneDNN, of {onednn.VARIABLE}": "on" if onednn.current(os.environ).enabled else "off",
    }
    return preflight.rendezvous(
        planned.worker_spec,
        must_match=common | dict(must_match),
        metadata={"devices": devices, "processor": onednn.read_processor().name} | ports,
        exclusive=worker_spec.held_gpus(planned.worker_spec, planned.gpus),
        seconds=planned.options.connect_seconds,
        workdir=workdir,
        stop=stop,
        keys=keys,
    )


@explain_late_configuration()
def _configure_devices(planned: ClusterPlan, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Chooses this worker's devices and threads; returns what the log says of them."""
    # Not with CUDA_VISIBLE_DEVICES: the value of the site or Slurm (MIG UUIDs, for example) must not change.
    listed = tf.config.list_physical_devices("GPU")
    if listed:
        tf.config.set_visible_devices([listed[index] for index in planned.gpus], "GPU")
    if not planned.gpus and planned.local_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(planned.local_replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)
    return _add_second_thread(planned, members)


def _mirrored_strategy(planned: ClusterPlan) -> tf.distribute.Strategy:
    devices = [f"/{planned.device_type}:{index}" for index in range(planned.local_replicas)]
    if planned.gpus and planned.implementation == "ring":
        # Over the GPUs of one process MirroredStrategy has no ring, and this is its way without NCCL.
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
    return tf.distribute.MirroredStrategy(devices)


@explain_late_configuration()
def _multi_worker_strategy(planned: ClusterPlan, addresses: list[str]) -> tf.distribute.Strategy:
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        # Twice the limit of heartbeat.py, which therefore detects a loss first and names the worker.
        heartbeat_timeout_in_ms=int(2 * planned.options.heartbeat_seconds * 1000),
        coordinated_jobs=[collective.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=len(addresses))],
    )
    _send_in_large_chunks()
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if planned.implementation == "nccl" else communication.RING
    )
    cluster_resolver = cluster_resolver_lib.resolver(
        planned.worker_spec, addresses, num_gpus=planned.local_replicas if planned.device_type == "GPU" else 0
    )

    def logical_devices(original: Any, self: Any, cluster_resolver: Any, worker_device: str) -> tuple[Any, str]:
        del original, self, cluster_resolver
        return tuple(f"{worker_device}/device:CPU:{i}" for i in range(planned.local_replicas)), "CPU"

    with contextlib.ExitStack() as stack:
        if planned.device_type == "CPU" and planned.local_replicas > 1:
            # TensorFlow gives a CPU worker one replica; tests need several, as on a worker with several GPUs.
            owner = collective.CollectiveAllReduceExtended
            stack.enter_context(patching.patch(owner, "_initialize_local_devices", logical_devices))
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver, communication_options=options)


def _send_in_large_chunks() -> None:
    # TensorFlow sends in chunks of 4 KB and copies each: a sixth of the CPU time of an all-reduce.
    session = context.context()
    settings = session._config or tf.compat.v1.ConfigProto()
    if not settings.experimental.recv_buf_max_chunk:
        settings.experimental.recv_buf_max_chunk = _CHUNK_BYTES
    patching.put(session, "_config", settings)


def _make_roster(members: list[dict], planned: ClusterPlan, notes: Sequence[str], details: Sequence[str]) -> Roster:
    name = "NCCL" if planned.implementation == "nccl" else "RING over gRPC"
    workers = tuple(
        WorkerInfo(
            host=worker["host"],
            pid=worker["pid"],
            devices=worker["devices"],
            communication=f"{name} at {worker['address']}",
        )
        for worker in members
    )
    return Roster(workers=workers, notes=tuple(notes), details=tuple(details))


def _add_number_conversions() -> None:
    """Adds `float(variable)` and `int(variable)`, for callbacks, to mirrored variables, which lack them."""
    for name, kind in (("__float__", float), ("__int__", int)):
        if not hasattr(values.MirroredVariable, name):
            patching.put(values.MirroredVariable, name, lambda variable, kind=kind: kind(variable.numpy()))
