"""The thread that watches a run: for stalls of this worker, and for lost workers. Imports no TensorFlow.

If there are several workers, connections.py exchanges heartbeats between them, and finds those that are silent.
peer_loss.py has the state of the monitor, `HeartbeatMonitor`, and ends the process.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster.liveness import peer_loss
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor, Peer

# Seconds between two heartbeats; in a large job more, so that the chief handles about so many in each second.
INTERVAL_SECONDS = 1.0
MAX_PER_SECOND = 200


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    options: config_lib.ClusterOptions,
    watch: Callable[[HeartbeatMonitor], Coroutine[Any, Any, None]] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> HeartbeatMonitor:
    """Starts the monitor in a thread; every worker calls it once per process.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`.
        options: `heartbeat_seconds`, `stall_seconds` and `first_stall_seconds`.
        watch: what the thread does; None: `watch_run`, for one worker.
        loop: the event loop of the thread; None: a new one.
    """
    peers = {other: Peer(last_heartbeat=time.monotonic()) for other in (range(1, len(members)) if rank == 0 else (0,))}
    loop = loop or asyncio.new_event_loop()
    monitor = HeartbeatMonitor(rank=rank, members=members, options=options, peers=peers, loop=loop)
    peer_loss.register(monitor)
    work = (watch or watch_run)(monitor)
    # Started now: when a worker is lost, there may be too many.
    threading.Thread(target=peer_loss.exit_after_loss, args=(monitor,), name="tfdist-exit", daemon=True).start()
    threading.Thread(target=monitor.loop.run_until_complete, args=(work,), name="heartbeat", daemon=True).start()
    atexit.register(peer_loss.announce_exit, monitor)
    return monitor


def interval(size: int, heartbeat_seconds: float) -> float:
    """Returns the seconds between two heartbeats of each of `size` workers."""
    return min(max(INTERVAL_SECONDS, size / MAX_PER_SECOND), heartbeat_seconds / (4 if size < MAX_PER_SECOND else 3))


async def watch_run(
    monitor: HeartbeatMonitor, find_lost: Callable[[HeartbeatMonitor, float], bool] = lambda monitor, now: False
) -> None:
    """Sends heartbeats to the connected workers, and ends this process if it has not completed an execution in time.

    Args:
        find_lost: declares lost workers at a moment, as `time.monotonic`; returns whether there is one.
    """
    last = announced = monitor.created  # The process may have been suspended before this thread runs.
    pause = interval(len(monitor.members), monitor.options.heartbeat_seconds)
    while peer_loss.is_registered(monitor):
        await asyncio.sleep(min(INTERVAL_SECONDS, pause))
        now = time.monotonic()
        if now - last > monitor.options.heartbeat_seconds / 2:
            # This process was suspended, perhaps with all others by Slurm: their heartbeats are not read yet.
            for peer in monitor.peers.values():
                peer.last_heartbeat += now - last
            monitor.progress.last_pause = monitor.progress.resumed = now
        last = now
        if now - announced > pause - INTERVAL_SECONDS / 2:
            announced = now
            monitor.announce({})
        if monitor.all_finished.is_set():
            continue
        if monitor.is_paused() or any(peer.paused for peer in monitor.peers.values()):
            monitor.progress.last_pause = now
        if not find_lost(monitor, now) and (text := describe_stall(monitor, now)):
            peer_loss.declare_lost(monitor, text, stacks=True)


def describe_stall(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if this worker has not completed an execution, or a wait for a file, in time; "" otherwise.

    The timer starts with the end of the previous execution; before the first one, with the first call that waits for
    all workers. Time in which any worker is in a block of `pause_timers` does not count. If there is only one worker,
    its time outside of these calls does not count either: nobody waits for it, and it may be in a notebook or in a
    debugger.
    """
    options, name = monitor.options, peer_loss.worker_name(monitor, monitor.rank)
    if (waits := monitor.waits_for_file()) is not None:
        seconds, limit = now - max(waits[1], monitor.progress.resumed), options.stall_seconds
        if not limit or seconds <= max(limit, monitor.writing_seconds()):
            return ""
        more = "or raise config.cluster.stall_seconds if it is only slow"
        return f"{name} has waited for {waits[0]} for {seconds:.1f} s: mend its file system, {more}"
    collective, last = monitor.progress.collective, monitor.progress.last_execution
    if last is not None and len(monitor.members) == 1:
        last = None if collective is None else max(last, collective[1])
    if last is not None and options.stall_seconds:
        seconds = now - max(last, monitor.progress.last_pause)
        if seconds > options.stall_seconds:
            return f"{name} has not completed a step for {seconds:.1f} s (last step: {monitor.progress.step})"
    elif collective is not None and not monitor.progress.started and options.first_stall_seconds:
        seconds = now - max(collective[1], monitor.progress.last_pause)
        if seconds > options.first_stall_seconds:
            for_all = "for all workers " if len(monitor.members) > 1 else ""
            return (
                f"{name} has waited {for_all}for {seconds:.1f} s, in {collective[0]}, and no execution has "
                "ended yet (config.cluster.first_stall_seconds)"
            )
    return ""
