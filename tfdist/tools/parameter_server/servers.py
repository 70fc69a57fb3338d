"""Asynchronous training: who is chief, worker or parameter server, and what each of them starts."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.rendezvous import preflight
from tfdist.launch import local_workers, processes

_KINDS = ("chief", "worker", "ps")
_LOOK_SECONDS = 0.2
# How often a worker is started again.
_MOST_STARTS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Which task this process is, of the tasks that TF_CONFIG lists."""

    # "chief", "worker" and "ps" -> "host:port" of each.
    addresses: Mapping[str, Sequence[str]]
    kind: str
    index: int


def task_spec(env: MutableMapping[str, str]) -> TaskSpec:
    """Reads TF_CONFIG, and takes it out of `env`: the chief goes on as a process of its own.

    Raises:
        ValueError: it is not set, or names no chief, worker and parameter server.
    """
    text = env.get("TF_CONFIG", "")
    try:
        given = json.loads(text or "{}")
        addresses = {kind: list(given["cluster"][kind]) for kind in _KINDS}
        kind, index = given["task"]["type"], int(given["task"]["index"])
        if len(addresses["chief"]) != 1 or not addresses["worker"] or not addresses["ps"]:
            raise ValueError("one chief and any number of the others")
        for address in (addresses[kind][index], *addresses["chief"], *addresses["worker"], *addresses["ps"]):
            hostlist.split_address(address)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            "config.train.asynchronous needs a chief, workers and parameter servers: start them on this machine with "
            "python -m tfdist asynchronous, or give each of them a TF_CONFIG with cluster.chief, "
            f"cluster.worker, cluster.ps and its task ({type(error).__name__}: {error}). Received: TF_CONFIG={text!r}"
        ) from None
    del env["TF_CONFIG"]
    return TaskSpec(addresses=addresses, kind=kind, index=index)


def serve(mine: TaskSpec) -> None:
    """Does what the chief asks of a worker or a parameter server, until it is ended; never returns."""
    _prepare(os.environ)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # There is nothing to save here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the chief.
    specification = tf.train.ClusterSpec(mine.addresses)
    tf.distribute.Server(specification, job_name=mine.kind, task_index=mine.index, protocol="grpc").join()


def connect(
    mine: TaskSpec, seconds: float, watch: Callable[[], None] = lambda: None
) -> tuple[tf.distribute.Strategy, Any]:
    """Waits until workers and servers listen, calling `watch`; returns the chief's (strategy, coordinator).

    Raises:
        TimeoutError: some did not come within `seconds`; names their addresses.
    """
    _prepare(os.environ)
    deadline = time.monotonic() + seconds
    missing = [*mine.addresses["worker"], *mine.addresses["ps"]]
    while missing := [address for address in missing if not _listens(address)]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(missing)} worker(s) or parameter server(s) did not come within {seconds:.0f} s "
                f"(config.cluster.connect_seconds): {', '.join(missing)}. Start them."
            )
        watch()
        time.sleep(_LOOK_SECONDS)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(mine.addresses), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


@dataclasses.dataclass(slots=True, kw_only=True)
class ServerProcesses:
    """Workers and parameter servers on this machine, which end with this process; made by `start_crew`."""

    command: Sequence[str]
    environments: Mapping[str, Mapping[str, str]]
    # Told when a worker has died, and what is done about it.
    say: Callable[[str], None]
    # Called where no worker, or no server, can help any more.
    give_up: Callable[[str], None]
    running: dict[str, subprocess.Popen] = dataclasses.field(default_factory=dict)
    starts: dict[str, int] = dataclasses.field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts the process `name`, such as "worker 1", once more."""
        self.starts[name] = self.starts.get(name, 0) + 1
        bound = processes.die_with_parent(os.getpid(), signal.SIGKILL)
        self.running[name] = subprocess.Popen(
            self.command, env=self.environments[name], stdin=subprocess.DEVNULL, preexec_fn=bound
        )
        self.say(f"{name}: pid {self.running[name].pid}")

    def watch(self) -> None:
        """Starts workers again that have died."""
        for name, process in list(self.running.items()):
            if process.poll() is None:
                continue
            told = f"{name} has ended with {process.returncode}"
            if name.startswith("ps"):
                self.give_up(f"{told}, and the weights with it")
            elif self.starts[name] >= _MOST_STARTS:
                self.give_up(f"{told} for the {_MOST_STARTS}th time")
            else:
                self.say(f"WARNING: {told}. The others go on; it is started again.")
                self.start(name)

    def end(self) -> None:
        """Ends all of them."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()


def start_servers(
    command: Sequence[str],
    env: MutableMapping[str, str],
    *,
    workers: int,
    servers: int,
    say: Callable[[str], None],
    give_up: Callable[[str], None],
) -> ServerProcesses:
    """Starts workers, which share this machine's GPUs, and servers; makes this process their chief, by TF_CONFIG."""
    reserved = local_workers.reserve_ports(1 + workers + servers)
    addresses = [f"localhost:{each.getsockname()[1]}" for each in reserved]
    cluster = {"chief": addresses[:1], "worker": addresses[1 : 1 + workers], "ps": addresses[1 + workers :]}
    shares = local_workers.divide_gpus(local_workers.gpus(env), workers)

    def task(kind: str, index: int) -> dict[str, str]:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        gpus = ",".join(shares[index]) if kind == "worker" else ""
        return {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": gpus}

    counts = {"worker": workers, "ps": servers}
    names = {f"{kind} {index}": task(kind, index) for kind, count in counts.items() for index in range(count)}
    crew = ServerProcesses(
        command=command, environments={name: dict(env) | own for name, own in names.items()}, say=say, give_up=give_up
    )
    for each in reserved:
        each.close()
    for name in names:
        crew.start(name)
    env.update(task("chief", 0))
    return crew


def _prepare(env: MutableMapping[str, str]) -> None:
    preflight.unset_proxies(env)
    env["GRPC_FAIL_FAST"] = "use_caller"  # A worker that is away shall not be waited for.


def _listens(address: str) -> bool:
    try:
        with socket.create_connection(hostlist.split_address(address), timeout=5):
            return True
    except OSError:
        return False
