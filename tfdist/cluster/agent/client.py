"""The worker's end of the pipe to its agent. Imports no TensorFlow.

with client.meet(spec, ...) as agent:      all workers meet, and their values match
    with agent.start_limit(...):           TensorFlow starts
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.agent import decision, process
from tfdist.cluster.agent import keys as keys_lib
from tfdist.cluster.agent import listener as listener_lib
from tfdist.cluster.agent.keys import Keys
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Seconds that a message to the agent, and the end of its process, may take.
_PIPE_SECONDS, _END_SECONDS = 5.0, 5.0
IN_A_THREAD = (
    "child processes are not allowed here: tfdist's agent runs in a thread, and TensorFlow's start has no limit"
)


@dataclasses.dataclass(slots=True, kw_only=True)
class Agent:
    """The agent of this worker, seen from the worker."""

    spec: WorkerSpec
    keys: Keys
    connection: socket.socket
    # None: it runs in a thread.
    process: subprocess.Popen | None
    # One dict per worker in rank order, once they have met; see `meet`. The port of rank 0's agent.
    members: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    port: int = 0
    received: bytes = b""
    # The worker; a child that was forked must not speak for it.
    pid: int = dataclasses.field(default_factory=os.getpid)
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def send(self, **message: Any) -> None:
        """Sends a message. If the agent has ended, it is lost."""
        if os.getpid() == self.pid:
            with contextlib.suppress(OSError), self.sending:
                self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Returns the next message, or None after `seconds`; raises EOFError if the agent has ended."""
        while b"\n" not in self.received:
            poll = select.poll()
            poll.register(self.connection, select.POLLIN)
            if not poll.poll(1000 * seconds):
                return None
            try:
                part = self.connection.recv(2**16)
            except OSError:
                part = b""
            if not part:
                raise EOFError
            self.received += part
        line, _, self.received = self.received.partition(b"\n")
        return json.loads(line)

    def replace(self, **state: Any) -> None:
        """Starts an agent in a thread in place of one that was killed; `state`: what it continues with."""
        with self.sending:
            self.connection.close()
            if self.process is not None:
                self.process.wait()
            self.connection, self.process, self.received = _in_thread(), None, b""
        self.send(**_first(self.spec, self.keys), members=self.members, agent_port=self.port, **state)

    @contextlib.contextmanager
    def start_limit(self, seconds: float, heartbeat_seconds: float) -> Iterator[None]:
        """Kills this process (SIGKILL) if the block takes longer than `seconds`, or if another worker is lost in it.

        The agent first prints which worker does not respond, and requeues the Slurm job if this process may.

        Args:
            seconds: time limit of the block.
            heartbeat_seconds: of `ClusterOptions`.
        """
        self.send(start=seconds, heartbeat_seconds=heartbeat_seconds, restart_helps=slurm_requeue.restart_helps())
        yield
        self.send(started=True, heartbeat_seconds=heartbeat_seconds)

    def close(self) -> None:
        """Lets the agent end, and waits for it."""
        self.connection.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_SECONDS)


def unset_proxies(env: MutableMapping[str, str]) -> list[str]:
    """Removes proxy variables, which gRPC would use between workers; returns the names of those that were set."""
    names = [name for name in env if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")]
    for name in names:
        del env[name]
    return names


def local_path(workdir: os.PathLike | str | None) -> pathlib.Path | None:
    """Returns the absolute path of `workdir`, since workers may start in different directories.

    None: it is remote, such as "gs://bucket", and always shared.
    """
    return pathlib.Path(os.path.abspath(workdir)) if workdir and "://" not in str(workdir) else None


def rendezvous(spec: WorkerSpec, *, must_match: Mapping[str, str], seconds: float, **options: Any) -> list[dict]:
    """As `meet`, for processes that only compare: returns the members, and the agent ends."""
    members, agent = meet(spec, must_match=must_match, seconds=seconds, **options)
    if agent is not None:
        agent.close()
    return members


def meet(
    spec: WorkerSpec,
    *,
    must_match: Mapping[str, str],
    seconds: float,
    metadata: Mapping[str, Any] | None = None,
    exclusive: Sequence[str] = (),
    workdir: os.PathLike | str | None = None,
    stop: interruption.StopRequest | None = None,
    keys: Keys | None = None,
    in_thread: bool = False,
) -> tuple[list[dict[str, Any]], Agent | None]:
    """Waits until all workers are connected and their values match; every worker calls it before TensorFlow starts.

    Afterwards its port is free. If one fails, all raise the same error, at most about two seconds after `seconds`.

    Args:
        spec: rank, world size and addresses of this worker.
        must_match: name -> value that must be equal on all workers, such as a version.
        seconds: time limit.
        metadata: JSON values that may differ; all workers receive them.
        exclusive: resources that only one worker of a host may use, such as its GPUs.
        workdir: a directory that all workers must share; rank 0 creates it.
        stop: this worker's stop request, which is sent to the others.
        keys: what signs the messages; None: `keys.load`.
        in_thread: the agent is a thread, as where child processes are not allowed.

    Returns:
        The workers in rank order: `rank`, `address` ("host:port"), `host` (the machine's own name), `pid`, the items of
        `metadata`, and "agent": "thread" if it is one. And the agent of this worker; None if there is only one worker.

    Raises:
        StopError: a worker received a stop request.
        TimeoutError: workers are missing or cannot connect to each other.
        ValueError: `must_match` values differ, two workers use the same resource, or there is no key.
        OSError: a worker's port is in use, or workdir is not shared (FileNotFoundError) or cannot be written.
    """
    me = {"host": socket.gethostname(), "pid": os.getpid(), "metadata": dict(metadata or {})}
    if spec.num_workers == 1:
        if stop is not None and stop.reason is not None:
            decision.members_or_raise(decision.stopped({0: stop.reason}, spec.addresses))
        address = (spec.addresses or ("localhost",))[0]
        return [{"rank": 0, "address": address, "host": me["host"], "pid": me["pid"], **me["metadata"]}], None
    me |= {"must_match": dict(must_match), "exclusive": list(exclusive)}
    shared = local_path(workdir)
    try:
        keys = keys or keys_lib.load(shared, os.environ)
        agent = _launch(spec, keys, in_thread)
        if agent.process is None and not in_thread:
            me["metadata"]["agent"] = "thread"
        try:
            first = {"me": me, "seconds": seconds, "workdir": shared and str(shared)}
            agent.members = _await_decision(agent, first, stop)
        except BaseException:
            agent.close()
            raise
        return agent.members, agent
    finally:
        if shared is not None:
            keys_lib.remove_from_workdir(shared)


def _await_decision(agent: Agent, first: dict[str, Any], stop: interruption.StopRequest | None) -> list[dict]:
    told, killed = False, False
    agent.send(**_first(agent.spec, agent.keys), **first)
    while True:
        if stop is not None and stop.reason is not None and not told:
            agent.send(stop=stop.reason)
            told = True
        try:
            message = agent.receive(0.1)  # Returns, so that Python's signal handlers run.
        except EOFError:
            if killed or agent.process is None:
                raise RuntimeError("The agent of this worker has ended.") from None
            killed = True
            agent.connection, agent.process = _in_thread(), None
            agent.send(**_first(agent.spec, agent.keys), **first)
            continue
        if message is not None:
            agent.port = message.get("agent_port", 0)
            return decision.members_or_raise(message["decision"])


def _first(spec: WorkerSpec, keys: Keys) -> dict[str, Any]:
    return {"spec": dataclasses.asdict(spec), "keys": [secret.hex() for secret in keys.secrets]}


def _launch(spec: WorkerSpec, keys: Keys, in_thread: bool) -> Agent:
    """Starts the agent in a child process, or in a thread if that is not possible."""
    if not in_thread:
        ours, theirs = socket.socketpair()
        # Without site-packages (-S) it starts quickly. Its own session: Ctrl-C is for the worker.
        command = [sys.executable, "-I", "-S", process.__file__, str(theirs.fileno())]
        try:
            with theirs:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            ours.settimeout(_PIPE_SECONDS)
            return Agent(spec=spec, keys=keys, connection=ours, process=child)
        except OSError:
            ours.close()
    return Agent(spec=spec, keys=keys, connection=_in_thread(), process=None)


def _in_thread() -> socket.socket:
    """Starts an agent in a thread; returns the worker's end of the pipe."""
    listener_lib.raise_descriptor_limit()
    ours, theirs = socket.socketpair()
    work = process.run(theirs, None)
    with interruption.block_signals():
        threading.Thread(target=asyncio.run, args=(work,), name="agent", daemon=True).start()
    ours.settimeout(_PIPE_SECONDS)
    return ours
