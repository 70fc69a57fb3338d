"""The agent process of a worker: `python process.py DESCRIPTOR`. Imports only the standard library.

It talks to its worker through a pipe, one JSON object a line, and to the other agents (`exchange.py`, `peers.py`). It
sees at any time whether the worker runs, is stopped or has ended, also while TensorFlow starts, which lets no thread of
Python run in the worker: if another worker is lost meanwhile, or it takes too long, the agent ends the worker.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import sys
import time
import traceback
from typing import Any

if __name__ == "__main__":  # Started without site-packages, which makes it quick.
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.agent import dialing, exchange, messages, peers
from tfdist.cluster.agent import listener as listener_lib
from tfdist.cluster.agent.channel import Links
from tfdist.cluster.agent.keys import Keys
from tfdist.cluster.agent.peers import Peer, Peers
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Longest line of the pipe, in bytes.
_LINE_BYTES = 2**26
_CHECK_SECONDS = 1.0
# Seconds between the message and SIGKILL: the other workers still find this one, so they all name the same culprit.
_GRACE_SECONDS = 2.0
# Seconds in which the other agents read the last messages, and close their connections.
_CLOSE_SECONDS = 2.0


async def run(connection: socket.socket, pid: int | None) -> None:
    """Runs the agent until its worker closes the pipe or has ended.

    Args:
        connection: its end of the pipe.
        pid: process id of the worker; None: the agent runs in a thread of the worker.
    """
    reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_BYTES)
    with contextlib.closing(writer):
        await _Agent(reader, writer, pid).run()


class _Agent:
    """The parts of an agent, and what its worker says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int | None):
        self.reader, self.writer, self.pid = reader, writer, pid
        self.ended = asyncio.Event()
        self.exchange: messages.Exchange | None = None
        self.peers: Peers | None = None
        self.tasks: list[asyncio.Task] = []
        # Ends the worker if TensorFlow's start takes too long.
        self.starting: asyncio.Task | None = None

    async def run(self) -> None:
        """Runs until the worker has ended."""
        line = await self.reader.readline()
        if not line:
            return
        first = json.loads(line)
        spec = first["spec"] | {name: tuple(first["spec"][name]) for name in ("addresses", "chiefs", "gpu_names")}
        self.spec, self.links = WorkerSpec(**spec), Links(Keys(tuple(map(bytes.fromhex, first["keys"]))))
        self.address = await asyncio.to_thread(listener_lib.own_address, self.spec)
        if "me" in first:
            self.exchange = messages.Exchange(
                spec=self.spec,
                me=first["me"],
                seconds=first["seconds"],
                deadline=messages.now() + first["seconds"],
                workdir=first["workdir"] and pathlib.Path(first["workdir"]),
                nonce=secrets.token_hex(8),
                addresses=list(self.spec.addresses),
                links=self.links,
            )
        self.start(self.read_pipe(), self.watch_worker(), self.meet(first))
        await self.ended.wait()
        await self.leave()

    def start(self, *works: Any) -> None:
        """Runs coroutines until the end of the agent."""
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self.check)
            self.tasks.append(task)

    def check(self, task: asyncio.Task) -> None:
        """Ends the agent after an error in one of its coroutines."""
        if not task.cancelled() and task.exception() is not None:
            traceback.print_exception(task.exception())
            self.ended.set()

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message to the worker."""
        if not self.writer.is_closing():
            self.writer.write(json.dumps(message).encode() + b"\n")

    def is_running(self) -> bool | None:
        """Returns False if the worker's process is stopped or has ended; None: the system does not show it."""
        if self.pid is None or not os.path.exists("/proc/self/stat"):
            return None if self.pid else True
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state not in (b"T", b"t", b"Z", b"X")

    async def read_pipe(self) -> None:
        """Handles the messages of the worker until it closes the pipe."""
        with contextlib.suppress(OSError, ValueError):
            while line := await self.reader.readline():
                self.handle(json.loads(line))
        self.ended.set()

    async def watch_worker(self) -> None:
        """Notices the end of the worker also if a child of it holds the pipe open."""
        while self.pid is None or os.getppid() == self.pid:
            await asyncio.sleep(_CHECK_SECONDS)
        self.ended.set()

    def handle(self, message: dict[str, Any]) -> None:
        """Does what the worker says."""
        state = self.peers
        if "stop" in message and state is None:
            exchange.stop(self.exchange, message["stop"])
        elif state is None:
            return
        elif "start" in message:
            state.heartbeat_seconds = message["heartbeat_seconds"]
            self.starting = asyncio.ensure_future(self.limit_start(message["start"], message["restart_helps"]))
        elif "started" in message:
            state.started = True
            if self.starting is not None:
                self.starting.cancel()
            state.heartbeat_seconds = message["heartbeat_seconds"]
            peers.tell_loss(state)
        elif "step" in message:
            peers.store_own(state, message)
        elif "finished" in message:
            peers.note_finished(state, self.spec.rank)
            self.tell({"sent": True})
        elif "lost" in message:
            peers.declare_lost(state, **message["lost"])
            self.tell({"sent": True})
        elif "missing_in" in message:
            found = peers.missing_in(state, message["missing_in"], message["advice"])
            peers.declare_lost(state, message["text"] + found)
        elif "leaving" in message:
            self.start(self.let_go())

    async def meet(self, first: dict[str, Any]) -> None:
        """Runs the exchange, or takes the place of an agent that was killed; then sends heartbeats."""
        state, decided = self.exchange, first
        if state is not None:
            await exchange.run(state, self.address)
            decided = state.decision
        if "error" in decided:
            return self.tell({"decision": decided})
        listener = None
        if self.spec.rank == 0:
            port = first.get("agent_port", self.spec.heartbeat_port)
            listener = listener_lib.listen_at_best(port, self.address)
            decided = decided | {"agent_port": listener.getsockname()[1]}
        self.begin(decided)
        if listener is not None and state is not None:
            self.links.send(messages.of_decision(state, agent_port=decided["agent_port"]))
        # Last: TensorFlow takes the port.
        self.tell({"decision": {"members": decided["members"]}, "agent_port": decided["agent_port"]})
        if listener is None:
            return await peers.stay_linked(self.peers)
        async with listener_lib.serving(listener, self.links.keys, lambda *said: peers.handle(self.peers, *said)):
            await self.ended.wait()

    def begin(self, decided: dict[str, Any]) -> None:
        """Begins to send heartbeats."""
        now, rank, members = time.monotonic(), self.spec.rank, decided["members"]
        others = [other for other in range(len(members)) if (other == 0) != (rank == 0)]
        state = self.peers = Peers(
            rank=rank,
            job=self.spec.job,
            members=members,
            links=self.links,
            tell=self.tell,
            is_running=self.is_running,
            port=decided["agent_port"],
            own=Peer(last_heartbeat=now),
            others={other: Peer(last_heartbeat=now) for other in others},
            started="started" in decided,
            finished=set(decided.get("finished", ())),
        )
        self.links.receive = lambda rank, message: peers.receive(state, rank, message)
        self.links.closed = lambda rank: None
        self.start(peers.watch(state), peers.check_closed(state), peers.check_servers(state))

    async def limit_start(self, seconds: float, restart_helps: bool | None) -> None:
        """Kills the worker if TensorFlow does not start within `seconds`, or if another worker is lost meanwhile.

        `restart_helps`: see `slurm_requeue.restart_helps`.
        """
        state, deadline = self.peers, time.monotonic() + seconds
        state.started = False
        while not state.loss and time.monotonic() < deadline:
            await asyncio.sleep(min(0.1, seconds / 5))
        gone = peers.silent(state, time.monotonic(), 3 * _CHECK_SECONDS)
        gone += [rank for rank in state.others.keys() - self.links.channels.keys() if rank not in gone]
        text = state.loss.get("lost", "")
        if not text:
            why = await dialing.refused({rank: state.members[rank]["address"] for rank in sorted(gone)}, _CHECK_SECONDS)
            names = {rank: peers.worker_name(state.members, rank) for rank in sorted(gone)}
            silent = "the connection is closed"
            reasons = [f"{name} does not answer ({why.get(rank, silent)})" for rank, name in names.items()]
            cause = "; ".join(reasons) or "all others respond, so one of them is hanging"
            text = f"TensorFlow did not start within {seconds:g} s after a successful rendezvous: {cause}"
        sys.stderr.write(f"tfdist: worker {self.spec.rank}: {text}. Restart all workers\n")
        sys.stderr.flush()
        await asyncio.sleep(_GRACE_SECONDS)
        if restart_helps is not None:
            slurm_requeue.enable_requeue(self.spec.rank, interruption.StopRequest(), lambda: restart_helps)
            slurm_requeue.requeue(state.timed_out | set(gone))
        os.kill(self.pid or os.getpid(), signal.SIGKILL)

    async def let_go(self) -> None:
        """Tells the worker that it may end: the others know why."""
        await peers.leave(self.peers)
        self.tell({"sent": True})

    async def leave(self) -> None:
        """Says to the other agents that the worker has ended, and closes the connections."""
        if self.peers is not None:
            own = self.peers
            if not own.loss and not own.all_finished and own.rank not in own.finished:
                peers.announce(own, {"ended": True})
            await peers.leave(own)
        await self.links.close(_CLOSE_SECONDS)
        for task in self.tasks:
            task.cancel()


if __name__ == "__main__":
    listener_lib.raise_descriptor_limit()
    _connection = socket.socket(fileno=int(sys.argv[1]))
    asyncio.new_event_loop().run_until_complete(run(_connection, os.getppid()))
    os._exit(0)  # Without a thread in which a network file system hangs.
