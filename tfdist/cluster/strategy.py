"""Connects the workers and creates the one `tf.distribute` strategy of this process."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import values

from tfdist import config as config_lib
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gpu_software, machine, onednn, replicas
from tfdist.cluster.discovery import environment, worker_spec
from tfdist.cluster.discovery.roster import Roster, WorkerInfo
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import heartbeat
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor
from tfdist.cluster.rendezvous import alone
from tfdist.config import patching, specs

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
    # Of the sums in a step: "nccl", "ring" or "tcp".
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

    @property
    def devices(self) -> str:
        """The devices of each worker, such as "2 GPUs"."""
        return f"{self.local_replicas} {self.device_type}{'s' if self.local_replicas > 1 else ''}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the start of the workers has made, on one of them."""

    strategy: tf.distribute.Strategy
    members: Sequence[Mapping[str, Any]]  # In rank order; see `rendezvous.rendezvous`.
    monitor: HeartbeatMonitor
    notes: Sequence[str]  # See `Roster`.
    details: Sequence[str] = ()
    others: str = ""


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
        if num_listed or options.gpus is not None:
            gpus = specs.part("cluster.gpus.chosen")(spec, num_listed, options.gpus)
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
        implementation=_implementation(communication, gpus, spec.num_workers, local_replicas),
    )


def _implementation(communication: config_lib.Communication, gpus: tuple[int, ...], workers: int, local: int) -> str:
    """Returns "nccl", "ring" or "tcp", for workers with `local` replicas; see `plan` for the errors."""
    chosen = communication.implementation
    if chosen == "auto":
        chosen = "nccl" if gpus else "tcp"
    if chosen == "tcp" and (gpus or not workers > local == 1):
        chosen = "ring"
    if chosen == "nccl" and not gpus:
        raise ValueError(
            'config.communication.implementation="nccl" needs GPUs, but the replicas of this worker run on the CPU: '
            'set it to "auto" or "ring".'
        )
    if chosen == "nccl" and communication.dtype == "bfloat16" and workers * local > 1:
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
        The cluster. Its strategy is MultiWorkerMirroredStrategy, or MirroredStrategy of one worker.

    Raises:
        StopError: a worker received a stop request before all were connected.
        TimeoutError: some workers did not connect within `connect_seconds`; lists ranks and hosts.
        ValueError: the workers' `must_match` values differ, the environment is not valid, or there is no key.
        OSError: this worker's port is in use, or `workdir` cannot be written or is not shared.
    """
    planned = plan_or_options if isinstance(plan_or_options, ClusterPlan) else plan(plan_or_options)
    alone.unset_proxies(os.environ)
    start = specs.part("cluster") if planned.num_workers > 1 else _start_alone
    started: Started = start(planned, must_match or {}, workdir, stop)
    assert started.strategy.num_replicas_in_sync == planned.num_replicas
    if planned.implementation == "tcp" and not replicas.rings:
        planned = dataclasses.replace(planned, implementation="ring")
    _add_number_conversions()
    return Cluster(
        strategy=started.strategy,
        rank=planned.worker_spec.rank,
        num_workers=planned.num_workers,
        num_replicas=planned.num_replicas,
        implementation=planned.implementation,
        roster=_make_roster(planned, started),
        monitor=started.monitor,
    )


def _start_alone(
    planned: ClusterPlan,
    must_match: Mapping[str, str],
    workdir: os.PathLike | str | None,
    stop: interruption.StopRequest | None,
) -> Started:
    members = alone.members(planned.worker_spec, {"devices": planned.devices}, stop)
    configure_devices(planned)
    notes = describe_notes(planned, gpu_software.describe(os.environ))
    devices = [f"/{planned.device_type}:{index}" for index in range(planned.local_replicas)]
    # Over the GPUs of one process MirroredStrategy has no ring, and this is its way without NCCL.
    without_nccl = planned.gpus and planned.implementation == "ring"
    sums = tf.distribute.ReductionToOneDevice() if without_nccl else None
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=sums)
    # It sends no messages, and only watches itself.
    monitor = heartbeat.start(rank=0, members=members, options=planned.options)
    return Started(strategy=strategy, members=members, monitor=monitor, notes=notes)


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


@explain_late_configuration()
def configure_devices(planned: ClusterPlan) -> None:
    """Chooses this worker's devices."""
    # Not with CUDA_VISIBLE_DEVICES: the value of the site or Slurm (MIG UUIDs, for example) must not change.
    listed = tf.config.list_physical_devices("GPU")
    if listed:
        tf.config.set_visible_devices([listed[index] for index in planned.gpus], "GPU")
    if not planned.gpus and planned.local_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(planned.local_replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)


def describe_notes(planned: ClusterPlan, software: Mapping[str, Any], processors: str = "") -> list[str]:
    """Returns warnings for the user: about the launcher, `software`, the processors, and GPUs that are not used.

    Args:
        planned: of this worker.
        software: the result of `gpu_software.describe`.
        processors: what to say of those of all workers.
    """
    here = None if planned.gpus or planned.options.gpus == 0 else machine.read(os.environ)
    unused = specs.part("cluster.gpus.others")(here) if here and here.gpus else ""
    found = [planned.worker_spec.note, *gpu_software.notes(software), onednn.advice(onednn.current(os.environ))]
    return [note for note in (*found, processors, unused) if note]


def _add_number_conversions() -> None:
    """Adds `float(variable)` and `int(variable)`, for callbacks, to mirrored variables, which lack them."""
    for name, kind in (("__float__", float), ("__int__", int)):
        if not hasattr(values.MirroredVariable, name):
            patching.put(values.MirroredVariable, name, lambda variable, kind=kind: kind(variable.numpy()))


def _make_roster(planned: ClusterPlan, started: Started) -> Roster:
    name = {"nccl": "NCCL", "ring": "RING over gRPC", "tcp": "RING over TCP"}[planned.implementation]
    workers = tuple(
        WorkerInfo(
            host=worker["host"],
            pid=worker["pid"],
            devices=worker["devices"],
            communication=f"{name} at {worker['address']}",
        )
        for worker in started.members
    )
    details = (onednn.describe(onednn.current(os.environ)), *started.details)
    return Roster(workers=workers, others=started.others, notes=tuple(started.notes), details=details)
