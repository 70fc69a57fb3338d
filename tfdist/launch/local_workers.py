"""Ports, GPUs and environments of several workers on this machine. Imports no TensorFlow."""

import json
import socket
from collections.abc import Mapping, Sequence

from tfdist import config as config_lib
from tfdist.cluster.devices import host_gpus
from tfdist.cluster.discovery import environment


def check_single_process(env: Mapping[str, str]) -> str:
    """Returns a warning about the environment, for example after a forgotten srun, else "".

    Raises ValueError if another launcher has started several processes, or variables are inconsistent.
    """
    options = config_lib.ClusterOptions()
    spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    if spec.num_workers > 1:
        raise ValueError(
            f"this is already process {spec.rank} of {spec.num_workers}, started by {spec.launcher}; each one "
            f"would start its own workers. Start python -m tfdist.main instead (docs/launchers.md)."
        )
    return spec.note


def divide_gpus(names: Sequence[str], workers: int, flag: str = "--workers") -> list[tuple[str, ...]]:
    """Divides the GPUs evenly among the workers, neighbours together; without GPUs, each has an empty tuple.

    Raises ValueError if there are fewer GPUs than workers; `flag`: the name of the flag for `workers`, for the message.
    """
    share = len(names) // workers
    if names and not share:
        raise ValueError(
            f"{flag}={workers}, but there are {len(names)} GPU(s), and each needs its own. Start at most "
            f"{len(names)}, or hide all GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return [tuple(names[rank * share : (rank + 1) * share]) for rank in range(workers)]


def first_gpus(env: Mapping[str, str], count: int) -> dict[str, str]:
    """Returns the variables that make the first `count` GPUs visible; {} on a machine without GPUs.

    Raises ValueError if there are GPUs, but fewer than `count`.
    """
    names = host_gpus.assigned_gpus(env)
    if names and len(names) < count:
        raise ValueError(f"{count} replicas need {count} GPUs, but this machine has {len(names)}.")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[:count])} if names else {}


def reserve_ports(count: int) -> list[socket.socket]:
    """Reserves free ports as long as the returned sockets are open.

    The sockets do not listen, so that a worker with SO_REUSEADDR can listen on them.
    """
    sockets = []
    for _ in range(count):
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        sockets.append(reserved)
    return sockets


def environments(
    env: Mapping[str, str], addresses: Sequence[str], gpus_by_rank: Sequence[tuple[str, ...]]
) -> list[dict[str, str]]:
    """Returns the environment of each worker; `addresses`: "host:port" of each, not used if there is one worker."""
    found = []
    for rank, names in enumerate(gpus_by_rank):
        variables = {name: value for name, value in env.items() if name != "TF_CONFIG"}
        if len(gpus_by_rank) > 1:
            task = {"type": "worker", "index": rank}
            variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": [*addresses]}, "task": task})
        if names:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        found.append(variables)
    return found
