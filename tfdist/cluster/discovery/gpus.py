"""Which of the GPUs of its host a worker uses. Imports no TensorFlow."""

from collections.abc import Sequence

from tfdist.cluster.discovery.worker_spec import WorkerSpec


def visible_gpus(spec: WorkerSpec, num_listed: int) -> tuple[int, ...]:
    """Chooses this worker's GPUs, as indices into the `num_listed` GPUs that TensorFlow lists in this process."""
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
        wanted: None: all; an int n: the first n; a list: those at these indices of `assigned`, in this order.
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
    """Returns the names of the GPUs with these indices on their host, if known; for `rendezvous.rendezvous`."""
    return tuple(f"GPU {name}" for index, name in enumerate(spec.gpu_names) if index in indices)
