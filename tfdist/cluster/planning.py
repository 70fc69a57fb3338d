"""The workers and devices of a run, known before any device is initialised; configures the devices of this worker."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.devices import gpu_software
from tfdist.cluster.discovery import environment, worker_spec
from tfdist.cluster.discovery import gpus as gpus_lib
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Parts of TensorFlow's errors for devices that are configured after the first operation.
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
    # Implementation of the all-reduce of a step: "nccl", "ring" or "tcp".
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
    """The result of starting the workers, on one of them."""

    strategy: tf.distribute.Strategy
    monitor: HeartbeatMonitor
    # See `Roster`.
    notes: Sequence[str] = ()
    details: Sequence[str] = ()


def plan(
    options: config_lib.ClusterOptions | None = None,
    env: Mapping[str, str] | None = None,
    *,
    communication: config_lib.Communication | None = None,
) -> ClusterPlan:
    """Detects the workers from the launcher's variables; without a launcher, this process is the only worker.

    Initialises no device and opens no port. See `environment.resolve` for the launchers and their order.

    Args:
        options: ports, timeouts and devices; None: the defaults.
        env: the environment; None: that of this process.
        communication: `config.communication`; None: the defaults.

    Raises:
        ValueError: variables are inconsistent or missing; this worker has fewer GPUs than `options.gpus` names, none
            for NCCL, or GPUs and several logical devices; NCCL does not support `communication.dtype`.
        GpusNotFoundError: this host has GPUs, but TensorFlow lists none.
    """
    options, communication = options or config_lib.ClusterOptions(), communication or config_lib.Communication()
    env = os.environ if env is None else env
    spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    seconds = worker_spec.connect_seconds(options.connect_seconds, spec.num_workers)
    options = dataclasses.replace(options, connect_seconds=seconds)
    gpus = () if options.gpus == 0 else gpus_lib.choose_gpus(spec, gpu_software.num_listed(env), options.gpus)
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


@contextlib.contextmanager
def explain_late_configuration() -> Iterator[None]:
    """If the block configures devices or collectives too late, raises an error that names the call to move.

    Raises:
        RuntimeError: TensorFlow has already run an operation, or listed logical devices.
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
    # Not by CUDA_VISIBLE_DEVICES: the value from the site or Slurm, such as MIG UUIDs, must not change.
    listed = tf.config.list_physical_devices("GPU")
    if listed:
        tf.config.set_visible_devices([listed[index] for index in planned.gpus], "GPU")
    if not planned.gpus and planned.local_replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(planned.local_replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)
