"""One worker's place among all workers, and what every reader of the environment needs. Imports no TensorFlow."""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence

# A job has a block of consecutive ports, of this length or a multiple, for its tasks on one host and its heartbeats.
PORTS_PER_JOB = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker's place among all workers."""

    # "slurm", "tf_config", "mpi", "pbs" or "local".
    launcher: str
    rank: int = 0
    num_workers: int = 1
    # "host:port" of each worker in rank order. Empty without a launcher, and where the launcher does not tell: then
    # `preflight.check` finds them out, asking at the `chiefs`.
    addresses: tuple[str, ...] = ()
    # The port of this worker; 0 without a launcher.
    port: int = 0
    # Where rank 0 listens for the signs of life of the others, if that port is free; 0: at any port.
    heartbeat_port: int = 0
    # "host:port" where rank 0 may be, when `addresses` is empty.
    chiefs: tuple[str, ...] = ()
    # This worker among those of its host.
    local_rank: int = 0
    local_size: int = 1
    # Tells this job from others that use the same hosts; for messages, too.
    job: str = "local"
    # Among how many tasks the GPUs that TensorFlow lists here are divided; 1: the launcher has divided them already.
    gpu_sharers: int = 1
    # What the GPUs that TensorFlow lists are called on their host, in that order; empty where nothing tells.
    gpu_names: tuple[str, ...] = ()
    # A sentence for the user, when this is probably not what was meant.
    note: str = ""


def visible_gpus(spec: WorkerSpec, num_listed: int) -> tuple[int, ...]:
    """Chooses this worker's GPUs, as indices into the `num_listed` GPUs that TensorFlow lists in this process.

    Raises:
        ValueError: there are fewer GPUs than tasks that share them.
    """
    share = num_listed // spec.gpu_sharers
    if num_listed and not share:
        raise ValueError(
            f"{spec.gpu_sharers} tasks on one host share {num_listed} GPU(s), but each task needs its own. Start at "
            "most one task per GPU (Slurm: srun --gpus-per-task=1, also for MIG slices), or hide all GPUs with "
            "CUDA_VISIBLE_DEVICES=''."
        )
    if spec.gpu_sharers == 1:
        return tuple(range(num_listed))
    return tuple(range(spec.local_rank * share, (spec.local_rank + 1) * share))


def held_gpus(spec: WorkerSpec, indices: Sequence[int]) -> tuple[str, ...]:
    """Names the GPUs with these indices as their host knows them, where the environment tells; for `preflight`."""
    return tuple(f"GPU {name}" for index, name in enumerate(spec.gpu_names) if index in indices)


def port_block(port_base: int, port_count: int, job: int, *, at_least: int) -> tuple[int, int]:
    """Returns the first port and the number of ports of a job; jobs with neighbouring numbers do not overlap."""
    if at_least > port_count:
        raise ValueError(
            f"config.cluster.port_count must be at least {at_least}, the tasks on one host. Received: {port_count}"
        )
    length = min(PORTS_PER_JOB * -(-at_least // PORTS_PER_JOB), port_count)
    return port_base + job % (port_count // length) * length, length


def divide_block(first: int, length: int, tasks: int) -> tuple[int, int]:
    """Divides a block of ports: how many are for the tasks on one host, and which for heartbeats; 0: none is left."""
    return (length - 1, first + length - 1) if length > tasks else (length, 0)


def number(texts: Iterable[str]) -> int:
    """A number below 2**32 that the texts decide, the same in every process."""
    return zlib.crc32("\n".join(texts).encode())


def cuda_devices(env: Mapping[str, str], name: str = "CUDA_VISIBLE_DEVICES") -> tuple[str, ...] | None:
    """The entries of the variable; None where it is not set, and all GPUs are visible."""
    if name not in env:
        return None
    entries = tuple(entry.strip() for entry in env[name].split(",") if entry.strip())
    # CUDA stops at the first entry that is no device; "NoDevFiles" is how Slurm writes none.
    stop = next((i for i, entry in enumerate(entries) if entry.startswith("-") or entry == "NoDevFiles"), None)
    return entries[:stop]


def need(env: Mapping[str, str], names: Sequence[str], why: str) -> None:
    """Raises a ValueError that lists each of `names` that is not set."""
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise ValueError(
            f"{why}, but these variables are not set: {', '.join(missing)}. Pass the launcher's variables to the "
            f"process (a container or shell may have removed them). {received(env, names)}"
        )


def integer(env: Mapping[str, str], name: str) -> int:
    """Reads a number that is not negative; raises a ValueError where it is none."""
    if not env[name].isdecimal():
        raise ValueError(f"{name} must be a number. Received: {env[name]!r}")
    return int(env[name])


def received(env: Mapping[str, str], names: Sequence[str]) -> str:
    """The end of a message: those of `names` that are set, with their values."""
    return "Received: " + ", ".join(f"{name}={env[name]}" for name in dict.fromkeys(names) if name in env)
