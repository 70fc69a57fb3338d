"""After the exchange: the agents send heartbeats, and name workers that are lost. Imports only the standard library.

Rank 0's agent has a connection to every other. Each agent sends its worker's state every second. A worker is lost if
its agent says that its process has ended; if it is stopped, or if nothing comes from its host, for `heartbeat_seconds`;
or if the connection is closed, it does not return and its server of TensorFlow refuses connections. A process that is
busy in a call that holds Python's lock is not lost: its agent says that it runs. Rank 0 announces lost workers; the
other agents detect the loss of rank 0 themselves. During a long execution, an agent also checks the servers of others.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.cluster.agent import dialing, messages
from tfdist.cluster.agent.channel import Channel, Links
from tfdist.cluster.agent.dialing import UnreachableError
from tfdist.cluster.discovery import hostlist

# Seconds between two heartbeats; in a large job more, so that rank 0 handles about so many in each second.
_INTERVAL_SECONDS = 1.0
_MOST_PER_SECOND = 200
# After so many refused connections, a second each, a worker without a connection is lost.
_FAILED_CHECKS = 3
# Workers of one machine that read rank 0's last message in a second, at least; and seconds for all, at most.
_READERS_PER_SECOND, _READING_SECONDS = 10, 120.0
# Lost workers that a message describes one by one.
_MOST_DESCRIBED = 8


@dataclasses.dataclass(slots=True, kw_only=True)
class Peer:
    """The state of a worker, as its agent says."""

    # When its last own heartbeat came, or the exchange ended; as `time.monotonic`.
    last_heartbeat: float
    # When its agent last said that its process runs.
    last_alive: float = 0.0
    # Its last completed step; None: no heartbeat yet.
    step: int | None = None
    # The call in which it waits for all others, in words, and the seconds since; None: it is in no such call.
    waits: tuple[str, float] | None = None
    # True if it is in a block of `HeartbeatMonitor.paused`, or, from rank 0, if any worker is.
    paused: bool = False
    # Failed checks since the connection was closed, and why it does not respond, in words.
    failed_checks: int = 0
    why: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Peers:
    """The workers of the job, seen from one agent."""

    rank: int
    job: str
    # One dict per worker in rank order, as returned by `client.rendezvous`.
    members: Sequence[Mapping[str, Any]]
    links: Links
    # Sends a message to the worker of this agent.
    tell: Callable[[dict[str, Any]], None]
    # Returns whether the process of this worker runs: it is neither stopped nor ended. None: unknown.
    is_running: Callable[[], bool | None]
    # The port of rank 0's agent.
    port: int
    # Of `ClusterOptions`; infinite before the worker sends it.
    heartbeat_seconds: float = float("inf")
    # This worker, and the workers whose agents have a connection to this one: rank 0, or all others.
    own: Peer
    # Seconds since the last execution of this worker ended; None: none is under way.
    executing: float | None = None
    others: dict[int, Peer] = dataclasses.field(default_factory=dict)
    # Whether another worker was in a block of `HeartbeatMonitor.paused` when this one was last told.
    paused: bool = False
    # True as soon as TensorFlow has started in this worker.
    started: bool = False
    finished: set[int] = dataclasses.field(default_factory=set)
    # Once a worker is lost: what the messages to the others say of it; see `declare_lost`.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Ranks whose loss this agent detected itself.
    timed_out: set[int] = dataclasses.field(default_factory=set)

    @property
    def all_finished(self) -> bool:
        """True if all workers have finished the run: after that, missing heartbeats are ignored."""
        return 0 in self.finished if self.rank else len(self.finished) == len(self.members)


def interval(size: int, heartbeat_seconds: float) -> float:
    """Returns the seconds between two heartbeats of each of `size` workers."""
    return min(
        max(_INTERVAL_SECONDS, size / _MOST_PER_SECOND), heartbeat_seconds / (4 if size < _MOST_PER_SECOND else 3)
    )


def worker_name(members: Sequence[Mapping[str, Any]], rank: int) -> str:
    """Returns the name of a worker in messages."""
    return f"worker {rank} (host {members[rank]['host']}, pid {members[rank]['pid']})"


def receive(state: Peers, rank: int, message: dict[str, Any]) -> None:
    """Stores a message of another agent; raises ValueError if it is malformed."""
    if "kind" in message:  # A late one of the exchange.
        return
    peer, lost = state.others[rank], message.get("lost", "")
    if not isinstance(lost, str):
        raise ValueError("not a heartbeat")
    _store_status(peer, message, message.get("fresh") is True)
    if message.get("running") is True:
        peer.last_alive = time.monotonic()
    if message.get("finished") is True:
        note_finished(state, rank)
    if lost:
        stacks, restart_helps = message.get("stacks") is True, message.get("restart_helps") is True
        declare_lost(state, lost, stacks=stacks, restart_helps=restart_helps)
    elif message.get("ended") is True and rank not in state.finished and not state.all_finished:
        peer.why = "its process has ended"
        declare_lost(state, describe(state, rank))


def _store_status(peer: Peer, message: Mapping[str, Any], fresh: bool) -> None:
    step, waits = message.get("step"), message.get("waits")
    if type(step) is not int or step < 0:
        raise ValueError("not a heartbeat")
    if waits is not None and not (isinstance(waits, list) and [type(value) for value in waits] == [str, float]):
        raise ValueError("not a heartbeat")
    peer.waits, peer.paused, peer.failed_checks = waits and tuple(waits), message.get("paused") is True, 0
    if fresh:
        peer.last_heartbeat, peer.step = time.monotonic(), step


def store_own(state: Peers, message: Mapping[str, Any]) -> None:
    """Stores a heartbeat of this agent's worker."""
    _store_status(state.own, message, True)
    state.executing = message.get("executing")


def note_finished(state: Peers, rank: int) -> None:
    """Notes that a worker has finished; rank 0 announces it once all have."""
    state.finished.add(rank)
    if state.all_finished or rank == state.rank != 0:
        announce(state, {"finished": True})
    if state.all_finished:
        state.tell({"all_finished": True})


def announce(state: Peers, message: Mapping[str, Any]) -> None:
    """Sends a message with the state of this worker to all connected agents."""
    own, now = state.own, time.monotonic()
    waits = own.waits and [own.waits[0], own.waits[1] + now - own.last_heartbeat]
    # The other workers are connected to rank 0 alone, which forwards the pauses.
    paused = own.paused or any(peer.paused for peer in state.others.values() if state.rank == 0)
    fresh = own.step is not None and now - own.last_heartbeat < 1.2 * interval(
        len(state.members), state.heartbeat_seconds
    )
    running = state.is_running()
    running = own.step is None if running is None else running
    found = {"step": own.step or 0, "waits": waits, "paused": paused, "fresh": fresh, "running": running}
    # In every message after a loss: an agent that returns later learns of it, too.
    state.links.send(found | state.loss | message)


def declare_lost(
    state: Peers, text: str, *, stacks: bool = False, restart_helps: bool = True, tell: bool = True
) -> None:
    """Announces a lost worker to the other agents, and to this worker once TensorFlow has started.

    See `peer_loss.declare_lost`. `tell`: False if it is this worker, which ends already.
    """
    if not state.loss and not state.all_finished:
        state.loss = {"lost": text, "stacks": stacks, "restart_helps": restart_helps}
        announce(state, {})
        if tell:
            tell_loss(state)


def tell_loss(state: Peers) -> None:
    """Tells this worker of a loss: it ends."""
    if state.loss and state.started:
        state.tell({"loss": state.loss, "timed_out": sorted(state.timed_out)})


def describe(state: Peers, rank: int) -> str:
    """Notes that this agent detected the loss of a worker, and returns it in words."""
    peer, name = state.others[rank], worker_name(state.members, rank)
    if not state.loss:
        state.timed_out.add(rank)
    seconds = time.monotonic() - peer.last_heartbeat
    if peer.step is None:
        return f"{name} is lost: it no longer answers ({peer.why or f'no sign of life for {seconds:.1f} s'})"
    return f"{name} is lost: last heartbeat {seconds:.1f} s ago, then at step {peer.step}"


def describe_all(state: Peers, ranks: Sequence[int]) -> str:
    """As `describe`, of several workers: of many, their hosts in Slurm's notation."""
    texts = [describe(state, rank) for rank in ranks]
    if len(ranks) <= _MOST_DESCRIBED:
        return "; ".join(texts)
    seconds = time.monotonic() - min(state.others[rank].last_heartbeat for rank in ranks)
    hosts = hostlist.compress_hostlist(state.members[rank]["host"] for rank in ranks)
    return f"workers {hostlist.ranges(ranks)} (hosts {hosts}) are lost: last heartbeats up to {seconds:.1f} s ago"


def silent(state: Peers, now: float, limit: float) -> list[int]:
    """Returns the workers that have neither sent a heartbeat nor, as their agents say, run for `limit` seconds."""
    alive = {rank: max(peer.last_heartbeat, peer.last_alive) for rank, peer in state.others.items()}
    found = [rank for rank, moment in alive.items() if now - moment > limit and rank not in state.finished]
    # TensorFlow's start lets no thread run, and so no agent that is one.
    return [rank for rank in found if state.others[rank].step is not None or "agent" not in state.members[rank]]


def left_behind(state: Peers, now: float) -> str:
    """Returns a message if a worker waits for one that has finished; "" otherwise. Only rank 0 checks it."""
    if state.rank != 0 or not state.finished:
        return ""
    waits = {rank: peer.waits for rank, peer in state.others.items() if peer.waits is not None}
    if state.own.waits is not None:
        waits[0] = (state.own.waits[0], state.own.waits[1] + now - state.own.last_heartbeat)
    waiting = {rank: found for rank, found in waits.items() if found[1] > state.heartbeat_seconds}
    if not waiting:
        return ""
    names = ", ".join(worker_name(state.members, rank) for rank in sorted(state.finished))
    rank = min(waiting)
    purpose, seconds = waiting[rank]
    return (
        f"{names} has finished, but {worker_name(state.members, rank)} has waited for all workers for "
        f"{seconds:.1f} s, in {purpose}: every worker must call the same functions of tfdist"
    )


def missing_in(state: Peers, purpose: str, advice: str) -> str:
    """Returns which of the other workers are not in a collective; if all are, `advice`."""
    waiting = {rank for rank, peer in state.others.items() if peer.waits is not None and peer.waits[0] == purpose}
    names = ", ".join(worker_name(state.members, rank) for rank in sorted(state.others.keys() - waiting))
    return f"{names} did not reach it" if names else f"all workers have started it. {advice}"


async def watch(state: Peers) -> None:
    """Sends heartbeats, and declares workers lost."""
    last = announced = time.monotonic()
    while True:
        pause = interval(len(state.members), state.heartbeat_seconds)
        await asyncio.sleep(min(_INTERVAL_SECONDS, pause))
        now = time.monotonic()
        if now - last > state.heartbeat_seconds / 2 or state.is_running() is False:
            # This process was suspended, perhaps with all others by Slurm: their heartbeats are not read yet.
            for peer in state.others.values():
                peer.last_heartbeat += now - last
        last = now
        if (paused := any(peer.paused for peer in state.others.values())) or state.paused:
            state.paused = paused
            state.tell({"paused": paused})
        if now - announced > pause - _INTERVAL_SECONDS / 2:
            announced = now
            announce(state, {})
        limit = state.heartbeat_seconds
        if state.all_finished:
            continue
        if silent(state, now, limit):
            # If a host loses its network, its workers time out one after another: report them together.
            declare_lost(state, describe_all(state, silent(state, now, limit / 2)))
        elif text := left_behind(state, now):
            declare_lost(state, text, restart_helps=False)


async def check_closed(state: Peers) -> None:
    """Declares workers lost whose connections are closed and whose servers of TensorFlow refuse connections."""
    while True:
        await asyncio.sleep(_INTERVAL_SECONDS)
        gone = state.others.keys() - state.links.channels.keys() - state.finished
        if state.all_finished or not gone:
            continue
        failed = await dialing.refused({rank: state.members[rank]["address"] for rank in gone}, _INTERVAL_SECONDS)
        for rank in gone - state.links.channels.keys():
            peer = state.others[rank]
            peer.why = failed.get(rank, "")
            peer.failed_checks = peer.failed_checks + 1 if rank in failed else 0
            peer.last_alive = peer.last_alive if rank in failed else time.monotonic()
        lost = [rank for rank in sorted(gone) if state.others[rank].failed_checks >= _FAILED_CHECKS]
        if lost:
            declare_lost(state, describe_all(state, lost))


async def check_servers(state: Peers) -> None:
    """Checks the servers of workers without a connection to this agent, while an execution takes long."""
    ranks = set(dialing.partners(state.rank, len(state.members))) - state.others.keys()
    addresses = {rank: state.members[rank]["address"] for rank in sorted(ranks)}
    failed: dict[int, str] = {}
    checked = time.monotonic()
    while True:
        limit = state.heartbeat_seconds
        await asyncio.sleep(min(limit / 4, _INTERVAL_SECONDS))
        if time.monotonic() - checked < limit / 2:
            continue
        checked = time.monotonic()
        since = state.executing is not None and state.executing + time.monotonic() - state.own.last_heartbeat
        waiting = since and since > limit and not state.all_finished
        before, failed = failed, await dialing.refused(addresses, limit / 2) if waiting else {}
        for rank in before.keys() & failed.keys():
            own, other = (worker_name(state.members, one) for one in (state.rank, rank))
            return declare_lost(state, f"{own} cannot connect to {other}: {failed[rank]}")


async def handle(state: Peers, channel: Channel, request: dict[str, Any]) -> bool:
    """Rank 0: keeps the connection of an agent that returns; returns True. Raises ValueError if it is not one."""
    messages.check(request, len(state.members))
    rank = request["rank"]
    known = request["kind"] == "return" and request["job"] == state.job and rank in state.others
    if not known or request["pid"] != state.members[rank]["pid"]:
        return False
    channel.send({"job": state.job, "rank": state.rank})
    state.links.keep(rank, channel)
    announce(state, {})
    return True


async def stay_linked(state: Peers) -> None:
    """Other ranks: connects to rank 0 again whenever the connection is closed."""
    host, _ = hostlist.split_address(state.members[0]["address"])
    address = hostlist.join_address(host, state.port)
    found = {"to": 0, "job": state.job, "rank": state.rank, "nonce": "0" * 16, "kind": "return"}
    while True:
        await asyncio.sleep(0.2)
        if 0 in state.links.channels or state.all_finished:
            continue
        with contextlib.suppress(UnreachableError):
            request = found | {"pid": state.members[state.rank]["pid"]}
            channel, _ = await dialing.call(address, state.links.keys, request)
            state.links.keep(0, channel)
            announce(state, {"finished": True} if state.rank in state.finished else {})


async def leave(state: Peers) -> None:
    """Lets the others read the last messages before this agent ends; rank 0 waits until they have."""
    limit = time.monotonic() + min(_READING_SECONDS, len(state.members) / _READERS_PER_SECOND)
    while state.rank == 0 and state.links.channels.keys() - state.timed_out and time.monotonic() < limit:
        await asyncio.sleep(0.1)
