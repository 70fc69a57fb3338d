"""Detects workers that die, hang or become unreachable while a run lasts, and reports them. Imports no TensorFlow.

A thread in every worker has one TCP connection to the chief, and the chief's thread one to every worker. Each sends a
signed message every second with its last completed step. A connection that closes without a final message: the process
died. No heartbeat: it is suspended, or its host or network is down; or it is busy in a call that holds Python's lock,
which its watchdog process then confirms. The chief announces lost workers; every worker detects the loss of the chief
itself. During a long execution, a worker also checks the connections to workers other than the chief. peer_loss.py ends
the process. If there is only one worker, the thread watches for stalls alone, without a connection.
"""

import asyncio
import atexit
import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster.discovery import hostlist, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import peer_loss, reachability, stall
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor, Peer
from tfdist.cluster.wire import channel as channel_lib
from tfdist.cluster.wire import keys as keys_lib
from tfdist.cluster.wire import listener as listener_lib
from tfdist.cluster.wire.channel import Channel
from tfdist.cluster.wire.keys import Keys

# Seconds between two heartbeats; in a large job more, so that the chief handles about so many in each second.
_INTERVAL_SECONDS = 1.0
_MOST_PER_SECOND = 200
# Seconds for a connection to the chief, and for its first message; then the worker tries again.
_HELLO_SECONDS = 5.0


def listen(spec: WorkerSpec) -> socket.socket | None:
    """Opens the chief's port for heartbeats, or any free port if it is in use; the rendezvous announces it.

    Returns:
        The listening socket; None on other workers, and if there is only one worker.
    """
    if spec.rank != 0 or spec.num_workers == 1:
        return None
    return listener_lib.listen_at_best(spec.heartbeat_port, listener_lib.own_address(spec))


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    listener: socket.socket | None,
    options: config_lib.ClusterOptions,
    keys: Keys | None = None,
) -> HeartbeatMonitor:
    """Starts the monitor in a thread; every worker calls it once per process.

    Args:
        rank: the rank of this worker.
        members: the workers, as returned by `preflight.rendezvous`; the chief's has `heartbeat_port`.
        listener: the result of `listen`.
        options: `heartbeat_seconds`, `stall_seconds`, and `connect_seconds` for the first heartbeat of a worker.
        keys: what signs the messages; None: `keys.load`.
    """
    keys = keys or keys_lib.load(None, os.environ)
    seconds = worker_spec.connect_seconds(options.connect_seconds, len(members))
    options = dataclasses.replace(options, connect_seconds=seconds)
    monitor = HeartbeatMonitor(rank=rank, members=members, options=options, keys=keys)
    peers = [other for other in range(len(members)) if (other == 0) != (rank == 0)]
    monitor.peers = {other: Peer(last_heartbeat=time.monotonic()) for other in peers}
    peer_loss.register(monitor)
    work = _run(monitor, listener)
    threading.Thread(target=monitor.loop.run_until_complete, args=(work,), name="heartbeat", daemon=True).start()
    atexit.register(peer_loss.announce_exit, monitor)
    return monitor


async def _run(monitor: HeartbeatMonitor, listener: socket.socket | None) -> None:
    if len(monitor.members) == 1:
        return await _watch(monitor)
    await asyncio.gather(
        _watch(monitor),
        _query_watchdogs(monitor),
        _check_reachability(monitor),
        _serve_heartbeats(monitor, listener) if listener else _connect_to_chief(monitor),
    )


async def _serve_heartbeats(monitor: HeartbeatMonitor, listener: socket.socket) -> None:
    async def handle(channel: Channel, hello: dict[str, Any]) -> None:
        rank = hello.get("rank")
        known = type(rank) is int and rank in monitor.peers and monitor.peers[rank].channel is None
        if known and hello.get("pid") == monitor.members[rank]["pid"]:
            _receive(monitor, rank, hello)
            await _exchange_heartbeats(monitor, rank, channel)

    async with listener_lib.serving(listener, monitor.keys, handle):
        await asyncio.Event().wait()


async def _connect_to_chief(monitor: HeartbeatMonitor) -> None:
    host, _ = hostlist.split_address(monitor.members[0]["address"])
    while True:  # `_watch` ends it if there is no heartbeat of the chief in time.
        channel = None
        try:
            address = (host, monitor.members[0]["heartbeat_port"])
            channel = await asyncio.wait_for(channel_lib.connect(address, monitor.keys), _HELLO_SECONDS)
            channel.send(peer_loss.status(monitor))
            _receive(monitor, 0, await asyncio.wait_for(channel.receive(), _HELLO_SECONDS))
            break
        except (OSError, ValueError, EOFError, asyncio.TimeoutError):
            if channel is not None:
                channel.writer.close()
            await asyncio.sleep(0.2)
    await _exchange_heartbeats(monitor, 0, channel)


async def _exchange_heartbeats(monitor: HeartbeatMonitor, rank: int, channel: Channel) -> None:
    """Exchanges heartbeats with one worker until the connection closes."""
    monitor.peers[rank].channel = channel
    peer_loss.announce(monitor, {})
    with contextlib.suppress(OSError, ValueError, EOFError):
        while True:
            _receive(monitor, rank, await channel.receive())
    monitor.peers[rank].channel = None
    if rank not in monitor.finished and not monitor.all_finished.is_set():
        peer_loss.declare_lost(monitor, peer_loss.describe(monitor, rank))


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


def interval(size: int, heartbeat_seconds: float) -> float:
    """Returns the seconds between two heartbeats of each of `size` workers."""
    return min(
        max(_INTERVAL_SECONDS, size / _MOST_PER_SECOND), heartbeat_seconds / (4 if size < _MOST_PER_SECOND else 3)
    )


async def _watch(monitor: HeartbeatMonitor) -> None:
    last = announced = time.monotonic()
    pause = interval(len(monitor.members), monitor.options.heartbeat_seconds)
    while peer_loss.is_registered(monitor):
        await asyncio.sleep(min(_INTERVAL_SECONDS, pause))
        now = time.monotonic()
        if now - last > monitor.options.heartbeat_seconds / 2:
            # This process was suspended, perhaps with all others by Slurm: their heartbeats are not read yet.
            for peer in monitor.peers.values():
                peer.last_heartbeat += now - last
            monitor.own.last_execution = monitor.own.last_execution and monitor.own.last_execution + now - last
        last = now
        if now - announced > pause - _INTERVAL_SECONDS / 2:
            announced = now
            peer_loss.announce(monitor, {})
        if monitor.all_finished.is_set():
            continue
        if monitor.own.pauses or any(peer.paused for peer in monitor.peers.values()):
            monitor.own.last_pause = now
        if text := _silent_peers(monitor, now):
            peer_loss.declare_lost(monitor, text)
        elif text := stall.left_behind(monitor, now):
            peer_loss.declare_lost(monitor, text, restart_helps=False)
        elif text := stall.describe_stall(monitor, now):
            peer_loss.declare_lost(monitor, text, stacks=True)


async def _query_watchdogs(monitor: HeartbeatMonitor) -> None:
    """Checks with the watchdog processes if workers without recent heartbeats are running: they may be busy."""
    half = monitor.options.heartbeat_seconds / 2

    async def query(rank: int) -> None:
        member, started = monitor.members[rank], time.monotonic()
        address = (hostlist.split_address(member["address"])[0], member.get("watchdog_port"))
        with contextlib.suppress(OSError, ValueError, EOFError, asyncio.TimeoutError):
            request = channel_lib.request(address, monitor.keys, {"pid": member["pid"]})
            if (await asyncio.wait_for(request, half)).get("running") is True:
                monitor.peers[rank].last_alive = started

    while peer_loss.is_registered(monitor):
        await asyncio.sleep(min(_INTERVAL_SECONDS, half / 2))
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
            monitor.own.last_execution is not None
            and time.monotonic() - monitor.own.last_execution > limit
            and not monitor.all_finished.is_set()
        )

    rank, why = await reachability.first_unreachable_pair(others, limit / 2, is_waiting)
    own, other = (peer_loss.worker_name(monitor, one) for one in (monitor.rank, rank))
    peer_loss.declare_lost(monitor, f"{own} cannot connect to {other}: {why}")


def _silent_peers(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message that names the workers without a recent heartbeat; "" if there are none."""
    alive = {rank: max(peer.last_heartbeat, peer.last_alive) for rank, peer in monitor.peers.items()}
    silent = {rank: now - moment for rank, moment in alive.items() if rank not in monitor.finished}
    for limit, connected in ((monitor.options.heartbeat_seconds, True), (monitor.options.connect_seconds, False)):
        seconds = {rank: silent[rank] for rank in silent if (monitor.peers[rank].step is not None) == connected}
        if max(seconds.values(), default=0.0) > limit:
            # If a host loses its network, its workers time out one after another: report them together.
            return peer_loss.describe_all(monitor, [rank for rank in seconds if seconds[rank] > limit / 2])
    return ""
