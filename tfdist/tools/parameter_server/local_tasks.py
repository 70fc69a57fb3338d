"""Starts workers and parameter servers on this machine. Imports no TensorFlow."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, MutableMapping, Sequence

from tfdist.cluster.devices import host_gpus
from tfdist.launch import local_workers, processes


@contextlib.contextmanager
def start(command: Sequence[str], env: MutableMapping[str, str], *, workers: int, servers: int) -> Iterator[Callable]:
    """Starts workers, which divide this machine's GPUs, and parameter servers; kills them at the end of the block.

    Yields a function that raises a ChildProcessError if one of them has exited.

    Args:
        command: of each process; its task is in TF_CONFIG.
        env: the environment of this process, which becomes the chief: gets its TF_CONFIG and no GPUs.
        workers: number of workers.
        servers: number of parameter servers.

    Raises:
        ValueError: there are fewer GPUs than workers.
    """
    reserved = local_workers.reserve_ports(1 + workers + servers)
    addresses = [f"localhost:{each.getsockname()[1]}" for each in reserved]
    cluster = {"chief": addresses[:1], "worker": addresses[1 : 1 + workers], "ps": addresses[1 + workers :]}
    gpus = local_workers.divide_gpus(host_gpus.assigned(env), workers)

    def task(kind: str, index: int) -> dict[str, str]:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        visible = ",".join(gpus[index]) if kind == "worker" else ""
        return {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": visible}

    for each in reserved:
        each.close()
    children: dict[str, subprocess.Popen] = {}

    def check() -> None:
        for name, child in children.items():
            if child.poll() is not None:
                raise ChildProcessError(f"{name} exited with code {child.returncode} while it was starting.")

    try:
        for kind, index in [*(("worker", i) for i in range(workers)), *(("ps", i) for i in range(servers))]:
            name = f"{kind} {index}"
            children[name] = subprocess.Popen(
                command,
                env=dict(env) | task(kind, index),
                stdin=subprocess.DEVNULL,
                preexec_fn=processes.die_with_parent(os.getpid(), signal.SIGKILL),
            )
            print(f"{name}: pid {children[name].pid}", flush=True)
        env.update(task("chief", 0))
        yield check
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.wait()
