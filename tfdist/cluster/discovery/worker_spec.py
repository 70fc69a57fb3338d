"""`WorkerSpec`: what a launcher's variables say about one worker. Imports no TensorFlow."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Rank, world size, addresses and GPUs of one worker."""

    # "slurm", "tf_config", "mpi", "pbs", "torchrun" or "local".
    launcher: str
    rank: int = 0
    num_workers: int = 1
    # "host:port" of each worker in rank order. Empty without a launcher, or if the launcher does not provide them; then
    # `rendezvous.rendezvous` collects them through one of `chiefs`.
    addresses: tuple[str, ...] = ()
    # The port of this worker; 0 without a launcher.
    port: int = 0
    # Port of rank 0 for heartbeats, if it is free; 0: any free port.
    heartbeat_port: int = 0
    # "host:port" where rank 0 may be, when `addresses` is empty.
    chiefs: tuple[str, ...] = ()
    # Rank among the workers on its host, and their number.
    local_rank: int = 0
    local_size: int = 1
    # Distinguishes this job from others on the same hosts; the key that signs messages is derived from it.
    job: str = "local"
    # Local tasks that share the visible GPUs; 1: the launcher has assigned GPUs to each task.
    gpu_sharers: int = 1
    # GPUs of the job on this host, whether this process sees them or not; 0: unknown.
    gpus_on_node: int = 0
    # Names, unique on the host, of the visible GPUs in TensorFlow's order; empty if unknown.
    gpu_names: tuple[str, ...] = ()
    # A warning for the user, for example after a forgotten srun.
    note: str = ""


def connect_seconds(given: float | None, num_workers: int) -> float:
    """Returns `given`, or a default that grows with the number of workers: all may load Python from one file system."""
    return max(120.0, 0.6 * num_workers) if given is None else given


def cuda_devices(env: Mapping[str, str], name: str = "CUDA_VISIBLE_DEVICES") -> tuple[str, ...] | None:
    """Returns the entries of the variable; None if it is not set: all GPUs are visible."""
    if name not in env:
        return None
    entries = tuple(entry.strip() for entry in env[name].split(",") if entry.strip())
    # CUDA stops at the first invalid entry; Slurm writes "NoDevFiles" for no device.
    stop = next((i for i, entry in enumerate(entries) if entry.startswith("-") or entry == "NoDevFiles"), None)
    return entries[:stop]
