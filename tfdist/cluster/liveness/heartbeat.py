"""Detects workers that die, hang or become unreachable while a run lasts, and reports them. Imports no TensorFlow.

A thread in every worker has one TCP connection to the chief, and the chief's thread one to every worker. Each sends a
line of JSON every second with its last completed step. A connection that closes without a final message: the process
died. No heartbeat: it is suspended, or its host or network is down. The chief announces lost workers; every worker
detects the loss of the chief itself. While an execution takes long, a worker also checks the connections to the workers
other than the chief. peer_loss.py ends the process.
"""

import asyncio
import atexit
import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import peer_loss, reachability
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor
from tfdist.cluster.rendezvous import rpc

# Seconds between two heartbeats.
_INTERVAL_SECONDS = 1.0


def listen(spec: WorkerSpec) -> socket.socket | None:
    """Opens the chief's port for heartbeats, or any free port if it is in use; the rendezvous announces it.

    Returns:
        The listening socket; None on other workers, and if there is only one worker.
    """
    return rpc.listen_at_best(spec.heartbeat_port) if spec.rank == 0 < spec.num_workers - 1 else None


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    listener: socket.socket | None,
    options: config_lib.Cluster,
) -> HeartbeatMonitor:
    """Starts the monitor in a thread; every worker calls it once per process.

    Args:
        rank: the rank of this worker.
        members: the workers, as returned by `preflight.rendezvous`; the chief's has `heartbeat_port`.
        listener: the result of `listen`.
        options: `heartbeat_seconds`, `stall_seconds`, and `connect_seconds` for the first heartbeat of a worker.
    """
    monitor = HeartbeatMonitor(rank=rank, members=members, options=options)
    peers = [other for other in range(len(members)) if (other == 0) != (rank == 0)]
    monitor.last_heartbeat, monitor.last_step = dict.fromkeys(peers, time.monotonic()), dict.fromkeys(peers)
    peer_loss.register(monitor)
    work = _run(monitor, listener)
    threading.Thread(target=monitor.loop.run_until_complete, args=(work,), name="heartbeat", daemon=True).start()
    atexit.register(peer_loss.announce_exit, monitor)
    return monitor


async def _run(monitor: HeartbeatMonitor, listener: socket.socket | None) -> None:
    await asyncio.gather(
        _watch(monitor),
        _check_reachability(monitor),
        _serve_heartbeats(monitor, listener) if listener else _connect_to_chief(monitor),
    )


async def _serve_heartbeats(monitor: HeartbeatMonitor, listener: socket.socket) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Other programs may connect too, such as a port scanner.
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            hello = json.loads(await asyncio.wait_for(reader.readline(), monitor.options.connect_seconds))
            rank = hello.get("rank") if isinstance(hello, dict) else None
            known = type(rank) is int and rank in monitor.last_heartbeat and rank not in monitor.writers
            if known and hello.get("pid") == monitor.members[rank]["pid"]:
                await _exchange_heartbeats(monitor, rank, reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, sock=listener)
    await server.serve_forever()


async def _connect_to_chief(monitor: HeartbeatMonitor) -> None:
    host, _ = hostlist.split_address(monitor.members[0]["address"])
    while True:  # `_watch` ends it if there is no heartbeat of the chief in time.
        try:
            reader, writer = await asyncio.open_connection(host, monitor.members[0]["heartbeat_port"])
            break
        except OSError:
            await asyncio.sleep(0.2)
    await _exchange_heartbeats(monitor, 0, reader, writer)


async def _exchange_heartbeats(
    monitor: HeartbeatMonitor, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Exchanges heartbeats with one worker until the connection closes."""
    monitor.writers[rank] = writer
    peer_loss.announce(monitor, {})
    with contextlib.suppress(OSError):
        while line := await reader.readline():
            _receive(monitor, rank, json.loads(line))
    del monitor.writers[rank]
    if rank not in monitor.finished and not monitor.all_finished.is_set():
        peer_loss.declare_lost(monitor, peer_loss.describe(monitor, rank))


def _receive(monitor: HeartbeatMonitor, rank: int, message: dict[str, Any]) -> None:
    monitor.last_heartbeat[rank], monitor.last_step[rank] = time.monotonic(), message["step"]
    if "finished" in message:
        peer_loss.note_finished(monitor, rank)
    if "lost" in message:
        peer_loss.declare_lost(
            monitor, message["lost"], stacks=message["stacks"], restart_helps=message["restart_helps"]
        )


async def _watch(monitor: HeartbeatMonitor) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(min(_INTERVAL_SECONDS, monitor.options.heartbeat_seconds / 4))
        now = time.monotonic()
        if now - last > monitor.options.heartbeat_seconds / 2:
            # This process was suspended, perhaps with all others by Slurm: their heartbeats are not read yet.
            monitor.last_heartbeat = {rank: moment + now - last for rank, moment in monitor.last_heartbeat.items()}
            monitor.last_execution = monitor.last_execution and monitor.last_execution + now - last
        last = now
        peer_loss.announce(monitor, {})
        if monitor.all_finished.is_set():
            continue
        text, stacks = _silent_peers(monitor, now), False
        stall = monitor.options.stall_seconds
        if not text and stall and monitor.last_execution is not None and now - monitor.last_execution > stall:
            name, seconds = peer_loss.worker_name(monitor, monitor.rank), now - monitor.last_execution
            text, stacks = f"{name} has not completed a step for {seconds:.1f} s (last step: {monitor.step})", True
        if text:
            peer_loss.declare_lost(monitor, text, stacks=stacks)


async def _check_reachability(monitor: HeartbeatMonitor) -> None:
    """Checks the connections to the workers without heartbeats to this one, while an execution takes long."""
    limit = monitor.options.heartbeat_seconds
    others = {
        w["rank"]: w["address"] for w in monitor.members if w["rank"] not in (monitor.rank, *monitor.last_heartbeat)
    }

    def is_waiting() -> bool:
        return (
            monitor.last_execution is not None
            and time.monotonic() - monitor.last_execution > limit
            and not monitor.all_finished.is_set()
        )

    rank, why = await reachability.first_unreachable_pair(others, limit / 2, is_waiting)
    own, other = (peer_loss.worker_name(monitor, one) for one in (monitor.rank, rank))
    peer_loss.declare_lost(monitor, f"{own} cannot connect to {other}: {why}")


def _silent_peers(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message that names the workers without a recent heartbeat; "" if there are none."""
    silent = {rank: now - moment for rank, moment in monitor.last_heartbeat.items() if rank not in monitor.finished}
    for limit, connected in ((monitor.options.heartbeat_seconds, True), (monitor.options.connect_seconds, False)):
        seconds = {rank: silent[rank] for rank in silent if (monitor.last_step[rank] is not None) == connected}
        if max(seconds.values(), default=0.0) > limit:
            # If a host loses its network, its workers time out one after another: report them together.
            return "; ".join(peer_loss.describe(monitor, rank) for rank in seconds if seconds[rank] > limit / 2)
    return ""
