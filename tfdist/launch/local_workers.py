"""Several workers on this machine: who may start them, their ports, GPUs and environments. Imports no TensorFlow."""

import json
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence

from tfdist import config as config_lib
from tfdist.cluster.discovery import environment, worker_spec

# Started like this already, a process is one worker of many.
_INSTEAD = {
    "slurm": "Slurm's tasks are the workers: srun python -m tfdist.main ... (docs/slurm.md)",
    "mpi": "the ranks are the workers: mpirun ... python -m tfdist.main ...",
    "pbs": "pbsdsh's tasks are the workers: pbsdsh -u ... python -m tfdist.main ...",
    "tf_config": "start python -m tfdist.main for each of its workers, or unset TF_CONFIG",
}


def refuse_other_launchers(env: Mapping[str, str]) -> str:
    """Refuses to start workers where another launcher has started several processes.

    Returns:
        A sentence for the user where the environment looks as if something else was meant, else "".

    Raises:
        ValueError: names that launcher, and what to use instead; or the environment contradicts itself.
    """
    options = config_lib.Cluster()
    place = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    if place.num_workers > 1:
        raise ValueError(
            f"this is already process {place.rank} of {place.num_workers}, started by {place.launcher}; each one "
            f"would start its own workers. Do not use tfdist.launch here: {_INSTEAD[place.launcher]}."
        )
    return place.note


def gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may call the GPUs of this machine: its own entries, or the UUIDs of `nvidia-smi -L`."""
    listed = worker_spec.cuda_devices(env)
    if listed is not None:
        return listed
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_list(done.stdout) if done.returncode == 0 else ()


def parse_list(text: str) -> tuple[str, ...]:
    """Reads what `nvidia-smi -L` writes: the UUIDs of GPUs, and for a GPU in slices (MIG) those of its slices."""
    found: list[str] = []
    for line in text.splitlines():
        match = re.search(r"\(UUID: ([\w/-]+)\)", line)
        if match is None:
            continue
        if line.startswith(" ") and found and not found[-1].startswith("MIG"):
            found.pop()  # CUDA does not use a GPU whole whose slices are in use.
        found.append(match[1])
    return tuple(found)


def divide_gpus(names: Sequence[str], workers: int) -> list[tuple[str, ...]]:
    """Gives each worker an equal share of the GPUs, neighbours together; without GPUs, each an empty one.

    Raises:
        ValueError: there are fewer GPUs than workers.
    """
    share = len(names) // workers
    if names and not share:
        raise ValueError(
            f"--workers={workers}, and there are {len(names)} GPU(s): each worker needs its own. Start at most "
            f"{len(names)}, or hide all GPUs with CUDA_VISIBLE_DEVICES=''."
        )
    return [tuple(names[rank * share : (rank + 1) * share]) for rank in range(workers)]


def first_gpus(env: Mapping[str, str], count: int) -> dict[str, str]:
    """The variables that leave a process the first `count` GPUs of this machine; none where it has no GPUs.

    Raises:
        ValueError: there are GPUs, and fewer than `count`.
    """
    names = gpus(env)
    if names and len(names) < count:
        raise ValueError(f"{count} replicas need {count} GPUs, and this machine has {len(names)}.")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[:count])} if names else {}


def reserve_ports(count: int) -> list[socket.socket]:
    """Finds free ports and keeps them from other programs as long as the sockets are open.

    They do not listen, so that a worker, which sets SO_REUSEADDR as they do, can.
    """
    sockets = []
    for _ in range(count):
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        sockets.append(reserved)
    return sockets


def environments(
    env: Mapping[str, str],
    ports: Sequence[int],
    shares: Sequence[tuple[str, ...]],
    hosts: Sequence[str] = (),
) -> list[dict[str, str]]:
    """The environment of each worker; there are as many as `shares`, what each is given of the GPUs.

    They are on this machine, each reached at its own of `hosts`, as in a network namespace, or else at localhost.
    """
    names = hosts or ["localhost"] * len(shares)
    addresses = [f"{host}:{port}" for host, port in zip(names, ports, strict=False)][: len(shares)]
    found = []
    for rank, share in enumerate(shares):
        own = {name: value for name, value in env.items() if name != "TF_CONFIG"}
        if len(shares) > 1:
            task = {"type": "worker", "index": rank}
            own["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        if share:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(share)
        found.append(own)
    return found
