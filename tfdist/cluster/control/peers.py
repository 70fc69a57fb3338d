"""Heartbeats between the workers' watchdog processes, which detect workers that die, hang or become unreachable.

Every watchdog has one connection, to the watchdog of the chief. It sends a signed message with its worker's last
completed step every second (less often in large jobs), except while the worker is suspended. If a connection closes
without a final message, the worker has died. If heartbeats are missing, the worker is suspended, or its host or network
is down. The chief's watchdog announces lost workers; the others detect the loss of the chief themselves. Imports no
TensorFlow.
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

# Seconds between two heartbeats; more in a large job, so that the chief handles about `MAX_PER_SECOND`.
INTERVAL_SECONDS = 1.0
MAX_PER_SECOND = 200
# Time limit in seconds for a connection to the chief, and for its first message, before a retry.
_HELLO_SECONDS = 5.0
# Maximum number of lost workers that a message describes one by one.
_MAX_DESCRIBED = 8
# Rate at which watchdogs are expected to read the chief's last message, and maximum seconds to wait for all.
_READERS_PER_SECOND, _READING_SECONDS = 10, 120.0


@dataclasses.dataclass(slots=True, kw_only=True)
class Peer:
    """Another worker, as its watchdog process describes it."""

    # When the last heartbeat arrived; before the first one, when the wait for it began (`time.monotonic`).
    last_heartbeat: float = dataclasses.field(default_factory=time.monotonic)
    # Its last completed step; None: no heartbeat yet.
    step: int | None = None
    # Purpose of the collective that it is in, and seconds since its start; None: it is in none.
    waits: tuple[str, float] | None = None
    # True if it is in a block of `HeartbeatMonitor.pause_timers`; for the chief, if any worker is.
    paused: bool = False
    # None: not connected.
    channel: Channel | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Peers:
    """What the watchdog of worker `rank` knows of other workers: of all on the chief, only of the chief elsewhere."""

    rank: int
    # The number of workers.
    size: int
    # rank -> host and pid. The chief has all workers here; any other worker has the chief and itself.
    members: Mapping[int, tuple[str, int]]
    # Time limits: between two heartbeats; for the first heartbeat, and for TensorFlow's start.
    heartbeat_seconds: float
    connect_seconds: float
    # Sends a message to this worker; see `HeartbeatMonitor.receive`.
    tell: Callable[[dict[str, Any]], None]
    # Whether this worker is suspended (SIGSTOP).
    is_stopped: Callable[[], bool] = lambda: False
    peers: dict[int, Peer] = dataclasses.field(init=False)
    # This worker's last report, and whether its TensorFlow has started.
    step: int = 0
    waits: tuple[str, float] | None = None  # As in `HeartbeatMonitor.collective`.
    paused: bool = False
    started: bool = False
    # Workers that have finished the run. After `all_finished`, missing heartbeats are ignored.
    finished: set[int] = dataclasses.field(default_factory=set)
    all_finished: bool = False
    # What messages say of the lost worker; empty: no worker is lost.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Set when this worker has ended.
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def __post_init__(self):
        self.peers = {rank: Peer() for rank in self.members if rank != self.rank}

    async def watch(self, address: tuple[str, int] | socket.socket, key: Key) -> None:
        """Exchanges heartbeats until this worker has ended, and the others know why.

        Args:
            address: of the chief; on the chief, the listening socket.
            key: signs the messages.
        """
        exchange = self._serve(address, key) if self.rank == 0 else self._call_chief(address, key)
        tasks = [asyncio.ensure_future(one) for one in (exchange, self._send_and_check())]
        await self.ended.wait()
        # If this watchdog has not reached the chief yet, the chief would notice the end only after `connect_seconds`.
        limit = time.monotonic() + _HELLO_SECONDS
        while self.rank and self.peers[0].step is None and not self.loss and time.monotonic() < limit:
            await asyncio.sleep(0.1)
        if self.rank == 0 and 0 in self.finished:
            self.announce({"finished": True})
        # Wait until all have read the last message: a watchdog that has not would report the chief as lost.
        limit = time.monotonic() + min(_READING_SECONDS, len(self.members) / _READERS_PER_SECOND)
        while self.loss and self.rank == 0 and self._connected() and time.monotonic() < limit:
            await asyncio.sleep(0.1)
        for rank in self._connected():
            self.peers[rank].channel.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def receive_from_worker(self, message: dict[str, Any]) -> None:
        """Handles a message from this worker; see `HeartbeatMonitor`."""
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
                message["lost"] += self._describe_absent(*absent_in)
            self.mark_lost(**message)

    def mark_lost(self, lost: str, *, stacks: bool = False, is_transient: bool = True) -> None:
        """Reports a lost worker to this worker and all others. Arguments: see `HeartbeatMonitor.mark_lost`."""
        if not self.loss:
            self.loss = {"lost": lost, "stacks": stacks, "is_transient": is_transient}
            self.announce({})
            self.tell(self.loss)

    def announce(self, message: dict[str, Any]) -> None:
        """Sends `message` and the current status to all connected watchdogs."""
        body = json.dumps(self.status() | message).encode()
        for peer in self.peers.values():
            if peer.channel is not None:
                peer.channel.send(body)

    def status(self) -> dict[str, Any]:
        """Returns what every message contains."""
        waits = self.waits and [self.waits[0], time.monotonic() - self.waits[1]]
        # The others are connected only to the chief, which forwards pauses.
        paused = self.paused or (self.rank == 0 and self._others_paused())
        worker = {"rank": self.rank, "pid": self.members[self.rank][1], "step": self.step}
        # After a loss, every message contains it: a worker that connects late learns of it, too.
        return worker | {"waits": waits, "paused": paused} | self.loss

    def find_lost(self, now: float) -> bool:
        """Marks workers that are lost at `now` (`time.monotonic`); returns whether any worker is lost."""
        silent = {r: now - peer.last_heartbeat for r, peer in self.peers.items() if r not in self.finished}
        for limit, connected in ((self.heartbeat_seconds, True), (self.connect_seconds, False)):
            seconds = {rank: silent[rank] for rank in silent if (self.peers[rank].step is not None) == connected}
            if max(seconds.values(), default=0.0) > limit:
                # If a host loses its network, its workers time out one after another: report them together.
                self.mark_lost(self.describe_lost([rank for rank in seconds if seconds[rank] > limit / 2]))
        if text := self._describe_left_behind(now):
            self.mark_lost(text, is_transient=False)
        return bool(self.loss)

    def describe_lost(self, ranks: Sequence[int]) -> str:
        """Returns a description of lost workers, with Slurm's notation if there are many."""
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

    async def _send_and_check(self) -> None:
        """Sends heartbeats and checks for lost workers until this worker has ended."""
        last = announced = begun = time.monotonic()
        pause, others_paused = interval(self.size, self.heartbeat_seconds), False
        while not self.ended.is_set():
            await asyncio.sleep(min(INTERVAL_SECONDS, pause))
            now, stopped = time.monotonic(), self.is_stopped()
            if stopped or now - last > self.heartbeat_seconds / 2:
                # This worker or this process was suspended, perhaps together with all others by Slurm.
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
                    "hangs on one of the workers, or a firewall blocks the workers' ports between the hosts"
                )

    async def _serve(self, listener: socket.socket, key: Key) -> None:
        async def handle(channel: Channel, hello: dict[str, Any]) -> None:
            rank = hello["rank"]
            if hello["pid"] == self.members[rank][1] and self.peers[rank].channel is None:
                await self._exchange(rank, channel, hello)

        async with listener_lib.serving(listener, key, handle):
            await asyncio.Event().wait()

    async def _call_chief(self, address: tuple[str, int], key: Key) -> None:
        while True:  # If no heartbeat arrives in time, `find_lost` marks the chief as lost.
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
        self._receive_from_peer(rank, first)
        self.peers[rank].channel = channel
        channel.send(self.status())
        try:
            await channel.receive_all(functools.partial(self._receive_from_peer, rank))
        except (OSError, ValueError, EOFError):
            if rank not in self.finished and not self.all_finished and not self.ended.is_set():
                self.mark_lost(self.describe_lost([rank]))
        finally:
            self.peers[rank].channel = None
            channel.close()

    def _receive_from_peer(self, rank: int, message: dict[str, Any]) -> None:
        """Handles a message from another watchdog process."""
        peer = self.peers[rank]
        peer.last_heartbeat = time.monotonic()
        peer.step, peer.waits, peer.paused = message["step"], message["waits"], message["paused"]
        if "finished" in message:
            self._note_finished(rank)
        if "lost" in message:
            self.mark_lost(message["lost"], stacks=message["stacks"], is_transient=message["is_transient"])

    def _note_finished(self, rank: int) -> None:
        """Notes that a worker has finished; the chief announces when all have."""
        self.finished.add(rank)
        all_done = rank == 0 if self.rank else len(self.finished) == self.size
        if all_done or rank == self.rank != 0:
            self.announce({"finished": True})
        if all_done and not self.all_finished:
            self.all_finished = True
            self.tell({"finished": True})

    def _describe_left_behind(self, now: float) -> str:
        """Returns a message if a worker waits for one that has finished, else "". Only the chief checks this."""
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
        have = "has" if len(self.finished) == 1 else "have"
        return (
            f"{names} {have} finished, but {self.name(rank)} has waited for all workers for {seconds:.1f} s, in "
            f"{purpose}: every worker must call the same functions of tfdist"
        )

    def _describe_absent(self, purpose: str, advice: str) -> str:
        """Returns which workers have not entered the collective `purpose`; `advice` if all have."""
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
