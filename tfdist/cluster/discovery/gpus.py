"""Which of the GPUs of its host a worker uses. Imports no TensorFlow."""

from collections.abc import Sequence

from tfdist.cluster.discovery.worker_spec import WorkerSpec


def choose_gpus(spec: WorkerSpec, num_listed: int, wanted: int | Sequence[int] | None = None) -> tuple[int, ...]:
    """Chooses this worker's GPUs, as indices into the `num_listed` GPUs that TensorFlow lists in this process.

    Args:
        wanted: `config.cluster.gpus`. None: all GPUs of this worker; an int n: the first n of them; a list: those
            at these indices among them, in this order.

    Raises:
        ValueError: there are fewer GPUs than tasks that share them, or this worker has fewer GPUs than `wanted`.
    """
    share = num_listed // spec.gpu_sharers
    if num_listed and not share:
        raise ValueError(
            f"{spec.gpu_sharers} tasks on one host share {num_listed} GPU(s), but each task needs its own. Start at "
            "most one task per GPU or MIG slice (Slurm: --ntasks-per-node at most --gpus-per-node), or hide all GPUs "
            "with CUDA_VISIBLE_DEVICES=''."
        )
    first = 0 if spec.gpu_sharers == 1 else spec.local_rank * share
    if wanted is None:
        wanted = share
    places = range(wanted) if isinstance(wanted, int) else wanted
    if any(place >= share for place in places):
        fewer = f"give at most {share}, or a list of indices from 0 to {share - 1}; " if share else ""
        raise ValueError(
            f"config.cluster.gpus={wanted!r}, but this worker has {share} GPU(s): {fewer}0 trains on the CPU."
        )
    return tuple(first + place for place in places)


def held_gpus(spec: WorkerSpec, indices: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of the GPUs with these indices in TensorFlow's list, if known; for `rendezvous.rendezvous`."""
    return tuple(f"GPU {name}" for index, name in enumerate(spec.gpu_names) if index in indices)
