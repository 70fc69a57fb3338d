"""`WorkerSpec`: what a launcher says of one worker, and the GPUs of the worker. Imports no TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Rank, world size, addresses and GPUs of one worker."""

    # "slurm", "tf_config", "mpi", "pbs", another name of `launchers`, or "local".
    launcher: str
    rank: int = 0
    num_workers: int = 1
    # "host:port" of each worker in rank order. Empty without a launcher, and if the launcher does not provide them:
    # then `preflight.rendezvous` collects them, through one of `chiefs`.
    addresses: tuple[str, ...] = ()
    # The port of this worker; 0 without a launcher.
    port: int = 0
    # Port of rank 0 for heartbeats, if it is free; 0: any free port.
    heartbeat_port: int = 0
    # "host:port" where rank 0 may be, when `addresses` is empty.
    chiefs: tuple[str, ...] = ()
    # Among the workers of its host.
    local_rank: int = 0
    local_size: int = 1
    # Distinguishes this job from others on the same hosts; also used in messages.
    job: str = "local"
    # Local tasks that share the visible GPUs; 1: the launcher has assigned GPUs to each task.
    gpu_sharers: int = 1
    # GPUs of the job on this host, whether this process sees them or not; 0: unknown.
    gpus_on_node: int = 0
    # Names of the visible GPUs on their host, in TensorFlow's order; empty if unknown.
    gpu_names: tuple[str, ...] = ()
    # A warning for the user, for example after a forgotten srun.
    note: str = ""


def connect_seconds(given: float | None, num_workers: int) -> float:
    """Returns `config.cluster.connect_seconds`, or its default: many Python starts read one file system."""
    return max(120.0, 0.6 * num_workers) if given is None else given


def visible_gpus(spec: WorkerSpec, num_listed: int) -> tuple[int, ...]:
    """Chooses this worker's GPUs, as indices into the `num_listed` GPUs that TensorFlow lists in this process.

    Raises:
        ValueError: there are fewer GPUs than tasks that share them.
    """
    share = num_listed // spec.gpu_sharers
    if num_listed and not share:
        raise ValueError(
            f"{spec.gpu_sharers} tasks on one host share {num_listed} GPU(s), but each task needs its own. Start at "
            "most one task per GPU or MIG slice (Slurm: --ntasks-per-node at most --gpus-per-node), or hide all GPUs "
            "with CUDA_VISIBLE_DEVICES=''."
        )
    if spec.gpu_sharers == 1:
        return tuple(range(num_listed))
    return tuple(range(spec.local_rank * share, (spec.local_rank + 1) * share))


def select_gpus(assigned: Sequence[int], wanted: int | Sequence[int] | None) -> tuple[int, ...]:
    """Chooses from the GPUs of this worker, as `config.cluster.gpus` says.

    Args:
        assigned: the result of `visible_gpus`.
        wanted: None: all; a number: the first ones; a list: those at these places of `assigned`, in this order.

    Raises:
        ValueError: this worker has fewer GPUs.
    """
    if wanted is None:
        return tuple(assigned)
    places = range(wanted) if isinstance(wanted, int) else wanted
    if any(place >= len(assigned) for place in places):
        fewer = f"choose from 0 to {len(assigned) - 1}, or at most {len(assigned)}; " if assigned else ""
        raise ValueError(
            f"config.cluster.gpus={wanted!r}, but this worker has {len(assigned)} GPU(s): {fewer}0 trains on the CPU."
        )
    return tuple(assigned[place] for place in places)


def held_gpus(spec: WorkerSpec, indices: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of the GPUs with these indices on their host, if known; for `preflight.rendezvous`."""
    return tuple(f"GPU {name}" for index, name in enumerate(spec.gpu_names) if index in indices)


def cuda_devices(env: Mapping[str, str], name: str = "CUDA_VISIBLE_DEVICES") -> tuple[str, ...] | None:
    """Returns the entries of the variable; None if it is not set: all GPUs are visible."""
    if name not in env:
        return None
    entries = tuple(entry.strip() for entry in env[name].split(",") if entry.strip())
    # CUDA stops at the first invalid entry; Slurm writes "NoDevFiles" for no device.
    stop = next((i for i, entry in enumerate(entries) if entry.startswith("-") or entry == "NoDevFiles"), None)
    return entries[:stop]
