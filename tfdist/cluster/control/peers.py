"""Heartbeats between the watchdog processes of the workers, which find those that die, hang or become unreachable.

Each has one connection to the chief's, and the chief's one to each other. Each sends a signed message every second with
its worker's last completed step, but not while its worker is stopped. A connection that closes without a final message:
the worker died. No heartbeat: it is suspended, or its host or network is down. The chief announces lost workers; every
other watchdog process detects the loss of the chief itself. Imports no TensorFlow.
"""

import asyncio
import dataclasses
import functools
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.cluster.control import listener as listener_lib
from tfdist.cluster.control import wire
from tfdist.cluster.control.keys import Key
from tfdist.cluster.control.wire import Channel
from tfdist.cluster.discovery import hostlist

# Seconds between two heartbeats; in a large job more, so that the chief handles about so many in each second.
INTERVAL_SECONDS = 1.0
MAX_PER_SECOND = 200
# Seconds for a connection to the chief, and for its first message; then it is tried again.
_HELLO_SECONDS = 5.0
# Lost workers that a message describes one by one.
_MAX_DESCRIBED = 8
# Watchdog processes that read the chief's last message in a second, at least; and seconds for all, at most.
_READERS_PER_SECOND, _READING_SECONDS = 10, 120.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Peer:
    """Another worker, as its watchdog process describes it."""

    # When the last heartbeat came, or the first one was awaited; as `time.monotonic`.
    last_heartbeat: float = dataclasses.field(default_factory=time.monotonic)
    # Its last completed step; None: no heartbeat yet.
    step: int | None = None
    # The call in which it waits for all others, in words, and the seconds since; None: it is in no such call.
    waits: tuple[str, float] | None = None
    # True if it is in a block of `HeartbeatMonitor.pause_timers`, or, from the chief, if any worker is.
    paused: bool = False
    # None: there is no connection.
    channel: Channel | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Peers:
    """What the watchdog process of worker `rank` knows of all workers: on the chief of all, else of the chief."""

    rank: int
    # The number of workers.
    size: int
    # rank -> host and pid: of the chief and of this worker, on the chief of all.
    members: Mapping[int, tuple[str, int]]
    # Without a heartbeat for so long a worker is lost; for its first heartbeat, and for TensorFlow's start.
    heartbeat_seconds: float
    connect_seconds: float
    # Sends a message to this worker; see `heartbeat_monitor.receive`.
    tell: Callable[[dict[str, Any]], None]
    # Whether this worker is stopped (SIGSTOP).
    is_stopped: Callable[[], bool] = lambda: False
    peers: dict[int, Peer] = dataclasses.field(init=False)
    # What this worker has last said of itself, and whether TensorFlow has started in it.
    step: int = 0
    waits: tuple[str, float] | None = None  # As in `HeartbeatMonitor.collective`.
    paused: bool = False
    started: bool = False
    # Workers that have finished the run. After `all_finished`, missing heartbeats are ignored.
    finished: set[int] = dataclasses.field(default_factory=set)
    all_finished: bool = False
    # The lost worker, in words, and what else a message says of it; empty: no worker is lost.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Set when this worker has ended.
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def __post_init__(self):
        self.peers = {rank: Peer() for rank in self.members if rank != self.rank}

    async def watch(self, address: tuple[str, int] | socket.socket, key: Key) -> None:
        """Exchanges heartbeats until this worker has ended, and the others know why.

        Args:
            address: of the chief; on the chief, the listening socket.
            key: what signs the messages.
        """
        talking = self._serve(address, key) if self.rank == 0 else self._call_chief(address, key)
        tasks = [asyncio.ensure_future(one) for one in (talking, self._look())]
        await self.ended.wait()
        # A worker that ends before it has met the chief here would be missed only after `connect_seconds`.
        limit = time.monotonic() + _HELLO_SECONDS
        while self.rank and self.peers[0].step is None and not self.loss and time.monotonic() < limit:
            await asyncio.sleep(0.1)
        if self.rank == 0 and 0 in self.finished:
            self.announce({"finished": True})
        # A process that has not read the last message would lose it with the connection, and name the chief.
        limit = time.monotonic() + min(_READING_SECONDS, len(self.members) / _READERS_PER_SECOND)
        while self.loss and self.rank == 0 and self._connected() and time.monotonic() < limit:
            await asyncio.sleep(0.1)
        for rank in self._connected():
            self.peers[rank].channel.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def hear(self, message: dict[str, Any]) -> None:
        """Takes a message of this worker; see `HeartbeatMonitor`."""
        if "step" in message:
            self.step, self.waits, self.paused = message["step"], message["waits"], message["paused"]
        self.started = self.started or "started" in message
        if "finished" in message:
            self._note_finished(self.rank)
        if "ended" in message and not self.loss and not self.all_finished:
            self.loss = {"lost": message["ended"], "stacks": False, "is_transient": False}
            self.announce({})
        if "lost" in message:
            if absent_in := message.pop("absent_in", None):
                message["lost"] += self._absent(*absent_in)
            self.mark_lost(**message)

    def mark_lost(self, lost: str, *, stacks: bool = False, is_transient: bool = True) -> None:
        """Reports a lost worker to this worker and all others. Arguments: see `HeartbeatMonitor.mark_lost`."""
        if not self.loss:
            self.loss = {"lost": lost, "stacks": stacks, "is_transient": is_transient}
            self.announce({})
            self.tell(self.loss)

    def announce(self, message: dict[str, Any]) -> None:
        """Sends a message with the present status to all that are connected."""
        body = json.dumps(self.status() | message).encode()
        for peer in self.peers.values():
            if peer.channel is not None:
                peer.channel.send(body)

    def status(self) -> dict[str, Any]:
        """Returns what every message contains."""
        waits = self.waits and [self.waits[0], time.monotonic() - self.waits[1]]
        # The others are connected to the chief alone, which forwards the pauses.
        paused = self.paused or (self.rank == 0 and self._others_paused())
        found = {"rank": self.rank, "pid": self.members[self.rank][1], "step": self.step}
        # The loss in every message from then on: a worker that connects late learns of it, too.
        return found | {"waits": waits, "paused": paused} | self.loss

    def find_lost(self, now: float) -> bool:
        """Marks the workers that are lost at the moment `now`, as `time.monotonic`; returns whether there is one."""
        silent = {r: now - peer.last_heartbeat for r, peer in self.peers.items() if r not in self.finished}
        for limit, connected in ((self.heartbeat_seconds, True), (self.connect_seconds, False)):
            seconds = {rank: silent[rank] for rank in silent if (self.peers[rank].step is not None) == connected}
            if max(seconds.values(), default=0.0) > limit:
                # If a host loses its network, its workers time out one after another: report them together.
                self.mark_lost(self.describe_lost([rank for rank in seconds if seconds[rank] > limit / 2]))
        if text := self._left_behind(now):
            self.mark_lost(text, is_transient=False)
        return bool(self.loss)

    def describe_lost(self, ranks: Sequence[int]) -> str:
        """Returns lost workers in words: of many, in Slurm's notation."""
        now, texts = time.monotonic(), []
        if len(ranks) > _MAX_DESCRIBED:
            seconds = now - min(self.peers[rank].last_heartbeat for rank in ranks)
            hosts = hostlist.compress_hostlist(self.members[rank][0] for rank in ranks)
            return (
                f"workers {hostlist.ranges(ranks)} (hosts {hosts}) are lost: last heartbeats up to {seconds:.1f} s ago"
            )
        for rank in ranks:
            step, seconds = self.peers[rank].step, now - self.peers[rank].last_heartbeat
            when = "no heartbeat since the rendezvous" if step is None else "last heartbeat"
            then = "" if step is None else f", then at step {step}"
            texts.append(f"{self.name(rank)} is lost: {when} {seconds:.1f} s ago{then}")
        return "; ".join(texts)

    def name(self, rank: int) -> str:
        """Returns the name of a worker in messages."""
        host, pid = self.members[rank]
        return f"worker {rank} (host {host}, pid {pid})"

    async def _look(self) -> None:
        """Looks for what is wrong, and sends heartbeats, until this worker has ended."""
        last = announced = begun = time.monotonic()
        pause, others_paused = interval(self.size, self.heartbeat_seconds), False
        while not self.ended.is_set():
            await asyncio.sleep(min(INTERVAL_SECONDS, pause))
            now, stopped = time.monotonic(), self.is_stopped()
            if stopped or now - last > self.heartbeat_seconds / 2:
                # This worker or this process was suspended, perhaps with all others by Slurm.
                for peer in self.peers.values():
                    peer.last_heartbeat += now - last
            last = now
            if now - announced > pause - INTERVAL_SECONDS / 2 and not stopped:
                announced = now
                self.announce({})
            if self._others_paused() != others_paused:
                others_paused = not others_paused
                self.tell({"others_paused": others_paused})
            if self.all_finished or self.loss or self.find_lost(now):
                continue
            if not self.started and now - begun > self.connect_seconds:
                self.mark_lost(
                    f"TensorFlow did not start within {self.connect_seconds:g} s after a successful rendezvous: it "
                    "hangs on one of the workers, or a firewall closes the workers' ports between the hosts"
                )

    async def _serve(self, listener: socket.socket, key: Key) -> None:
        async def handle(channel: Channel, hello: dict[str, Any]) -> None:
            rank = hello["rank"]
            if hello["pid"] == self.members[rank][1] and self.peers[rank].channel is None:
                await self._exchange(rank, channel, hello)

        async with listener_lib.serving(listener, key, handle):
            await asyncio.Event().wait()

    async def _call_chief(self, address: tuple[str, int], key: Key) -> None:
        while True:  # `find_lost` marks the chief if there is no heartbeat in time.
            channel = None
            try:
                channel = await asyncio.wait_for(wire.connect(address, key), _HELLO_SECONDS)
                channel.send(self.status())
                first = await asyncio.wait_for(channel.receive(), _HELLO_SECONDS)
                break
            except (OSError, ValueError, EOFError, asyncio.TimeoutError):
                if channel is not None:
                    channel.close()
                await asyncio.sleep(0.2)
        await self._exchange(0, channel, first)

    async def _exchange(self, rank: int, channel: Channel, first: dict[str, Any]) -> None:
        """Exchanges heartbeats with one worker until the connection closes."""
        self._receive(rank, first)
        self.peers[rank].channel = channel
        channel.send(self.status())
        try:
            await channel.receive_all(functools.partial(self._receive, rank))
        except (OSError, ValueError, EOFError):
            if rank not in self.finished and not self.all_finished and not self.ended.is_set():
                self.mark_lost(self.describe_lost([rank]))
        finally:
            self.peers[rank].channel = None
            channel.close()

    def _receive(self, rank: int, message: dict[str, Any]) -> None:
        """Stores the message of another watchdog process."""
        peer = self.peers[rank]
        peer.last_heartbeat = time.monotonic()
        peer.step, peer.waits, peer.paused = message["step"], message["waits"], message["paused"]
        if "finished" in message:
            self._note_finished(rank)
        if "lost" in message:
            self.mark_lost(message["lost"], stacks=message["stacks"], is_transient=message["is_transient"])

    def _note_finished(self, rank: int) -> None:
        """Notes that a worker has finished; the chief announces it once all have."""
        self.finished.add(rank)
        all_done = rank == 0 if self.rank else len(self.finished) == self.size
        if all_done or rank == self.rank != 0:
            self.announce({"finished": True})
        if all_done and not self.all_finished:
            self.all_finished = True
            self.tell({"finished": True})

    def _left_behind(self, now: float) -> str:
        """Returns a message if a worker waits for one that has finished; "" otherwise. Only the chief checks it."""
        if self.rank != 0 or not self.finished:
            return ""
        waits = {rank: peer.waits for rank, peer in self.peers.items() if peer.waits is not None}
        if self.waits is not None:
            waits[0] = (self.waits[0], now - self.waits[1])
        rank = min((rank for rank, found in waits.items() if found[1] > self.heartbeat_seconds), default=None)
        if rank is None:
            return ""
        names = ", ".join(self.name(rank) for rank in sorted(self.finished))
        purpose, seconds = waits[rank]
        return (
            f"{names} has finished, but {self.name(rank)} has waited for all workers for {seconds:.1f} s, in "
            f"{purpose}: every worker must call the same functions of tfdist"
        )

    def _absent(self, purpose: str, advice: str) -> str:
        """Returns which workers do not wait in a call that has lasted too long; `advice` if all do."""
        absent = [r for r, peer in self.peers.items() if peer.waits is None or peer.waits[0] != purpose]
        names = ", ".join(self.name(rank) for rank in absent)
        return f"{names} did not reach it" if absent else f"all workers have started it. {advice}"

    def _others_paused(self) -> bool:
        return any(peer.paused for peer in self.peers.values())

    def _connected(self) -> set[int]:
        return {rank for rank, peer in self.peers.items() if peer.channel is not None}


def interval(size: int, heartbeat_seconds: float) -> float:
    """Returns the seconds between two heartbeats of each of `size` workers."""
    return min(max(INTERVAL_SECONDS, size / MAX_PER_SECOND), heartbeat_seconds / (4 if size < MAX_PER_SECOND else 2))
