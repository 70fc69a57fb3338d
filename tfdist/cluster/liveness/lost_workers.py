"""Finds lost workers: without heartbeats, or waiting for one that has finished. Imports no TensorFlow."""

import time
from collections.abc import Sequence

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.liveness import peer_loss
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor

# Lost workers that a message describes one by one.
_MOST_DESCRIBED = 8


def find(monitor: HeartbeatMonitor, now: float) -> bool:
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
            return describe_all(monitor, [rank for rank in seconds if seconds[rank] > limit / 2])
    return ""


def _left_behind(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if a worker waits for one that has finished; "" otherwise. Only the chief checks it."""
    if monitor.rank != 0 or not monitor.finished:
        return ""
    waits = {rank: peer.waits for rank, peer in monitor.peers.items() if peer.waits is not None}
    if monitor.own.collective is not None:
        waits[0] = (monitor.own.collective[0], now - monitor.own.collective[1])
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


def describe(monitor: HeartbeatMonitor, rank: int) -> str:
    """Notes that this worker detected the loss of another one, and returns it in words."""
    step, seconds = monitor.peers[rank].step, time.monotonic() - monitor.peers[rank].last_heartbeat
    when = "no heartbeat since the rendezvous" if step is None else "last heartbeat"
    then = "" if step is None else f", then at step {step}"
    if not monitor.loss_known.is_set():
        monitor.timed_out.add(rank)
    return f"{peer_loss.worker_name(monitor, rank)} is lost: {when} {seconds:.1f} s ago{then}"


def describe_all(monitor: HeartbeatMonitor, ranks: Sequence[int]) -> str:
    """As `describe`, of several workers: of many, their hosts in Slurm's notation."""
    texts = [describe(monitor, rank) for rank in ranks]
    if len(ranks) <= _MOST_DESCRIBED:
        return "; ".join(texts)
    seconds = time.monotonic() - min(monitor.peers[rank].last_heartbeat for rank in ranks)
    hosts = hostlist.compress_hostlist(monitor.members[rank]["host"] for rank in ranks)
    return f"workers {hostlist.ranges(ranks)} (hosts {hosts}) are lost: last heartbeats up to {seconds:.1f} s ago"
