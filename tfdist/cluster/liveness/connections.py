"""Heartbeats between workers, which find those that die, hang or become unreachable. Imports no TensorFlow.

A thread in every worker has one TCP connection to the chief, and the chief's thread one to every worker. Each sends a
signed message every second with its last completed step. A connection that closes without a final message: the process
died. No heartbeat: it is suspended, or its host or network is down; or it is busy in a call that holds Python's lock,
which its watchdog process then confirms. The chief announces lost workers; every worker detects the loss of the chief
itself. During a long execution, a worker also checks the connections to workers other than the chief.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import selectors
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster.control import listener as listener_lib
from tfdist.cluster.control import wire as channel_lib
from tfdist.cluster.control.keys import Key
from tfdist.cluster.control.wire import Channel
from tfdist.cluster.discovery import hostlist, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import heartbeat, peer_loss, reachability
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor

# Seconds for a connection to the chief, and for its first message; then the worker tries again.
_HELLO_SECONDS = 5.0
# Lost workers that a message describes one by one.
_MAX_DESCRIBED = 8
# Seconds in which the messages of many workers gather.
_BATCH_SECONDS = 0.2


class _Batches(selectors.DefaultSelector):
    """Reads the messages of many workers a few times a second: to wake up for each takes twice the processor time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As in `selectors`, but it waits before it looks."""
        if timeout is None or timeout > 0:
            pause = _BATCH_SECONDS if timeout is None else min(timeout, _BATCH_SECONDS)
            time.sleep(pause)
            timeout = None if timeout is None else timeout - pause
        return super().select(timeout)


def listen(spec: WorkerSpec) -> socket.socket | None:
    """Opens the chief's port for heartbeats, or any free one, which the rendezvous announces; None on other workers."""
    return listener_lib.listen_at_best(spec.heartbeat_port, listener_lib.own_address(spec)) if spec.rank == 0 else None


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    listener: socket.socket | None,
    options: config_lib.ClusterOptions,
    keys: Key,
) -> HeartbeatMonitor:
    """Starts the heartbeats in the thread of the monitor; every worker calls it once per process.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`; the chief's has `heartbeat_port`.
        listener: the result of `listen`.
        options: as for `heartbeat.start`, and `connect_seconds` for the first heartbeat of a worker.
        keys: what signs the messages.
    """
    seconds = worker_spec.connect_seconds(options.connect_seconds, len(members))
    options = dataclasses.replace(options, connect_seconds=seconds)

    def watch(monitor: HeartbeatMonitor) -> Coroutine[Any, Any, None]:
        monitor.announce = functools.partial(_announce, monitor)
        return _watch(monitor, listener, keys)

    many = rank == 0 and len(members) > heartbeat.MAX_PER_SECOND
    loop = asyncio.SelectorEventLoop(_Batches()) if many else None
    return heartbeat.start(rank=rank, members=members, options=options, watch=watch, loop=loop)


async def _watch(monitor: HeartbeatMonitor, listener: socket.socket | None, keys: Key) -> None:
    await asyncio.gather(
        heartbeat.watch_run(monitor, find_lost),
        _query_watchdogs(monitor, keys),
        _check_reachability(monitor),
        _serve_heartbeats(monitor, listener, keys) if listener else _connect_to_chief(monitor, keys),
    )


async def _serve_heartbeats(monitor: HeartbeatMonitor, listener: socket.socket, keys: Key) -> None:
    async def handle(channel: Channel, hello: dict[str, Any]) -> None:
        rank = hello.get("rank")
        known = type(rank) is int and rank in monitor.peers and monitor.peers[rank].send is None
        if known and hello.get("pid") == monitor.members[rank]["pid"]:
            _receive(monitor, rank, hello)
            await _exchange_heartbeats(monitor, rank, channel)

    async with listener_lib.serving(listener, keys, handle):
        await asyncio.Event().wait()


async def _connect_to_chief(monitor: HeartbeatMonitor, keys: Key) -> None:
    host, _ = hostlist.split_address(monitor.members[0]["address"])
    while True:  # `find_lost` ends it if there is no heartbeat of the chief in time.
        channel = None
        try:
            address = (host, monitor.members[0]["heartbeat_port"])
            channel = await asyncio.wait_for(channel_lib.connect(address, keys), _HELLO_SECONDS)
            channel.send(status(monitor))
            _receive(monitor, 0, await asyncio.wait_for(channel.receive(), _HELLO_SECONDS))
            break
        except (OSError, ValueError, EOFError, asyncio.TimeoutError):
            if channel is not None:
                channel.close()
            await asyncio.sleep(0.2)
    await _exchange_heartbeats(monitor, 0, channel)


async def _exchange_heartbeats(monitor: HeartbeatMonitor, rank: int, channel: Channel) -> None:
    """Exchanges heartbeats with one worker until the connection closes."""
    monitor.peers[rank].send = channel.send
    channel.send(status(monitor))
    with contextlib.suppress(OSError, ValueError, EOFError):
        await channel.receive_all(functools.partial(_receive, monitor, rank))
    monitor.peers[rank].send = None
    if rank not in monitor.finished and not monitor.all_finished.is_set():
        peer_loss.declare_lost(monitor, note_lost(monitor, rank))


def _receive(monitor: HeartbeatMonitor, rank: int, message: dict[str, Any]) -> None:
    """Stores the message of a worker; raises ValueError if it is malformed."""
    step, lost, waits = message.get("step"), message.get("lost", ""), message.get("waits")
    if type(step) is not int or step < 0 or not isinstance(lost, str):
        raise ValueError("not a heartbeat")
    if waits is not None and not (isinstance(waits, list) and [type(value) for value in waits] == [str, float]):
        raise ValueError("not a heartbeat")
    peer = monitor.peers[rank]
    peer.last_heartbeat, peer.step = time.monotonic(), step
    peer.waits, peer.paused = waits and tuple(waits), message.get("paused") is True
    if message.get("finished") is True:
        peer_loss.note_finished(monitor, rank)
    if lost:
        stacks, restart_helps = message.get("stacks") is True, message.get("restart_helps") is True
        peer_loss.declare_lost(monitor, lost, stacks=stacks, restart_helps=restart_helps)


async def _query_watchdogs(monitor: HeartbeatMonitor, keys: Key) -> None:
    """Checks with the watchdog processes if workers without recent heartbeats are running: they may be busy."""
    half = monitor.options.heartbeat_seconds / 2

    async def query(rank: int) -> None:
        member, started = monitor.members[rank], time.monotonic()
        address = (hostlist.split_address(member["address"])[0], member.get("watchdog_port"))
        with contextlib.suppress(OSError, ValueError, EOFError, asyncio.TimeoutError):
            request = channel_lib.request(address, keys, {"pid": member["pid"]})
            if (await asyncio.wait_for(request, half)).get("running") is True:
                monitor.peers[rank].last_alive = started

    while peer_loss.is_registered(monitor):
        await asyncio.sleep(min(heartbeat.INTERVAL_SECONDS, half / 2))
        limit = time.monotonic() - half
        silent = [rank for rank in peer_loss.connected_ranks(monitor) if monitor.peers[rank].last_heartbeat < limit]
        await asyncio.gather(*(query(rank) for rank in silent if "watchdog_port" in monitor.members[rank]))


async def _check_reachability(monitor: HeartbeatMonitor) -> None:
    """Checks the connections to the workers without heartbeats to this one, while an execution takes long."""
    limit = monitor.options.heartbeat_seconds
    ranks = set(reachability.partners(monitor.rank, len(monitor.members))) - monitor.peers.keys()
    others = {rank: monitor.members[rank]["address"] for rank in sorted(ranks)}

    def is_waiting() -> bool:
        return (
            monitor.progress.last_execution is not None
            and time.monotonic() - monitor.progress.last_execution > limit
            and not monitor.all_finished.is_set()
        )

    rank, why = await reachability.first_unreachable_pair(others, limit / 2, is_waiting)
    this, other = (peer_loss.worker_name(monitor, one) for one in (monitor.rank, rank))
    peer_loss.declare_lost(monitor, f"{this} cannot connect to {other}: {why}")


def find_lost(monitor: HeartbeatMonitor, now: float) -> bool:
    """Declares the workers lost that are at the moment `now`, as `time.monotonic`; returns whether there is one."""
    if text := _silent_peers(monitor, now):
        peer_loss.declare_lost(monitor, text)
    elif text := _left_behind(monitor, now):
        peer_loss.declare_lost(monitor, text, restart_helps=False)
    return bool(text)


def _silent_peers(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message that names the workers without a recent heartbeat; "" if there are none."""
    alive = {rank: max(peer.last_heartbeat, peer.last_alive) for rank, peer in monitor.peers.items()}
    silent = {rank: now - moment for rank, moment in alive.items() if rank not in monitor.finished}
    for limit, connected in ((monitor.options.heartbeat_seconds, True), (monitor.options.connect_seconds, False)):
        seconds = {rank: silent[rank] for rank in silent if (monitor.peers[rank].step is not None) == connected}
        if max(seconds.values(), default=0.0) > limit:
            # If a host loses its network, its workers time out one after another: report them together.
            return note_all_lost(monitor, [rank for rank in seconds if seconds[rank] > limit / 2])
    return ""


def _left_behind(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if a worker waits for one that has finished; "" otherwise. Only the chief checks it."""
    if monitor.rank != 0 or not monitor.finished:
        return ""
    waits = {rank: peer.waits for rank, peer in monitor.peers.items() if peer.waits is not None}
    if monitor.progress.collective is not None:
        waits[0] = (monitor.progress.collective[0], now - monitor.progress.collective[1])
    waiting = {rank: found for rank, found in waits.items() if found[1] > monitor.options.heartbeat_seconds}
    if not waiting:
        return ""
    names = ", ".join(peer_loss.worker_name(monitor, rank) for rank in sorted(monitor.finished))
    rank = min(waiting)
    purpose, seconds = waiting[rank]
    return (
        f"{names} has finished, but {peer_loss.worker_name(monitor, rank)} has waited for all workers for "
        f"{seconds:.1f} s, in {purpose}: every worker must call the same functions of tfdist"
    )


def note_lost(monitor: HeartbeatMonitor, rank: int) -> str:
    """Notes that this worker detected the loss of another one, and returns it in words."""
    step, seconds = monitor.peers[rank].step, time.monotonic() - monitor.peers[rank].last_heartbeat
    when = "no heartbeat since the rendezvous" if step is None else "last heartbeat"
    then = "" if step is None else f", then at step {step}"
    if not monitor.loss_known.is_set():
        monitor.found_lost.add(rank)
    return f"{peer_loss.worker_name(monitor, rank)} is lost: {when} {seconds:.1f} s ago{then}"


def note_all_lost(monitor: HeartbeatMonitor, ranks: Sequence[int]) -> str:
    """As `note_lost`, of several workers: of many, their hosts in Slurm's notation."""
    texts = [note_lost(monitor, rank) for rank in ranks]
    if len(ranks) <= _MAX_DESCRIBED:
        return "; ".join(texts)
    seconds = time.monotonic() - min(monitor.peers[rank].last_heartbeat for rank in ranks)
    hosts = hostlist.compress_hostlist(monitor.members[rank]["host"] for rank in ranks)
    return f"workers {hostlist.ranges(ranks)} (hosts {hosts}) are lost: last heartbeats up to {seconds:.1f} s ago"


def _announce(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    """Sends a message with the present step to all connected workers."""
    body = json.dumps(status(monitor) | message).encode()
    for peer in monitor.peers.values():
        if peer.send is not None:
            peer.send(body)


def status(monitor: HeartbeatMonitor) -> dict[str, Any]:
    """Returns what every message contains."""
    collective = monitor.progress.collective
    waits = None if collective is None else [collective[0], time.monotonic() - collective[1]]
    # The other workers are connected to the chief alone, which forwards the pauses.
    paused = monitor.is_paused() or any(peer.paused for peer in monitor.peers.values() if monitor.rank == 0)
    # In every message from then on: a worker that connects late learns of the loss, too.
    found = {"rank": monitor.rank, "pid": os.getpid(), "step": monitor.progress.step, "waits": waits, "paused": paused}
    return found | monitor.loss
