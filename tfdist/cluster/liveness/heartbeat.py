"""Notices workers that die, hang or vanish while a run lasts, and names them. Imports no TensorFlow.

A thread in every worker speaks with the chief, and the chief's with all, over one TCP connection each: a line of JSON
a second, with the last finished step. A connection that ends without a goodbye is a process that died; silence is one
that was stopped, or a host or a cable that is gone. The chief tells the others whom it has lost, and all notice by
themselves when they lose the chief. A worker whose call takes long looks whether it reaches those with whom it does not
speak: the link between them may be gone. Then each worker has a moment to end by itself, as it does where TensorFlow
fails (see outcome.py, which asks `cause` who it was); where it hangs in a collective instead, the thread ends it.
"""

import asyncio
import atexit
import contextlib
import dataclasses
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.cluster.liveness import reachability
from tfdist.cluster.rendezvous import rpc

# Seconds between two messages on a connection.
_BEAT_SECONDS = 1.0
# Seconds in which the main thread may end by itself once a worker is lost.
_GRACE_SECONDS = 2.0
# Seconds that threads which Python's own end would wait for, such as one that writes a checkpoint, may still take.
_WRITING_SECONDS = 60.0

# The one of this process, if there is one; it has one cluster, too.
_monitor: "HeartbeatMonitor | None" = None


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """What this worker knows of the others; made by `watch`."""

    rank: int
    # One dict a worker in rank order, as `preflight.check` returns them.
    roster: Sequence[Mapping[str, Any]]
    options: config_lib.Cluster
    # The last step that this worker has finished, and when its last call was; None before the first.
    step: int = 0
    last_execution: float | None = None
    # Of the workers that this one speaks with: when they were last heard of, at which step (None: never), and how
    # they are spoken to.
    last_heartbeat: dict[int, float] = dataclasses.field(default_factory=dict)
    last_step: dict[int, int | None] = dataclasses.field(default_factory=dict)
    writers: dict[int, asyncio.StreamWriter] = dataclasses.field(default_factory=dict)
    # Who has come to the end of the run; `over` when all have, and nobody is missed any more.
    finished: set[int] = dataclasses.field(default_factory=set)
    all_finished: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Who was lost, in words, once it is known.
    cause: str = ""
    loss_known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Whether that is a reason to start again, and no error that a worker has told; whom this worker missed itself.
    restart_helps: bool = False
    timed_out: set[int] = dataclasses.field(default_factory=set)
    # Which thread ends this process: the first that says so.
    exit_claimed_by: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop = dataclasses.field(default_factory=asyncio.new_event_loop)

    def heartbeat(self, step: int) -> None:
        """Notes that a call into TensorFlow has ended, after so many finished steps."""
        self.step, self.last_execution = step, time.monotonic()

    def pause(self) -> None:
        """Notes that the caller does something else than steps, however long that lasts."""
        self.last_execution = None

    def finish(self, seconds: float) -> None:
        """Waits until all workers have come here; afterwards nobody is missed.

        Raises:
            TimeoutError: some have not come within `seconds`.
        """
        self.last_execution = None  # Waiting for a chief that writes is no stall.
        self.loop.call_soon_threadsafe(_note_finished, self, self.rank)
        deadline = time.monotonic() + seconds
        while not self.all_finished.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > deadline:
                raise TimeoutError(f"Not all workers came to the end of the run within {seconds:g} s of this one.")


def listen(spec: WorkerSpec) -> socket.socket | None:
    """Opens the chief's port for the others, or any where that is taken; they are to be told which in the roster."""
    return rpc.listen_at_best(spec.heartbeat_port) if spec.rank == 0 < spec.num_workers - 1 else None


def start(
    *,
    rank: int,
    roster: Sequence[Mapping[str, Any]],
    listener: socket.socket | None,
    options: config_lib.Cluster,
) -> HeartbeatMonitor:
    """Begins to watch, in a thread; to be called once in a process, by every worker.

    Args:
        rank: of this worker.
        roster: what `preflight.check` has returned; the chief's has `heartbeat_port`.
        listener: what `listen` has returned.
        options: `heartbeat_seconds`, `stall_seconds`, and `connect_seconds` for the first sign of a worker.
    """
    global _monitor
    _monitor = monitor = HeartbeatMonitor(rank=rank, roster=roster, options=options)
    spoken_with = [other for other in range(len(roster)) if (other == 0) != (rank == 0)]
    monitor.last_heartbeat, monitor.last_step = dict.fromkeys(spoken_with, time.monotonic()), dict.fromkeys(spoken_with)
    work = _run(monitor, listener)
    threading.Thread(target=monitor.loop.run_until_complete, args=(work,), name="heartbeat", daemon=True).start()
    atexit.register(_leave, monitor)  # Who ends in peace is not lost.
    return monitor


def lost_peer(seconds: float) -> str:
    """Returns who was lost, in words, waiting so long for it to become known; "" where nobody was.

    The calling thread then has to end this process.
    """
    if _monitor is None:
        return ""
    _monitor.loss_known.wait(seconds)
    claim_exit()
    return _monitor.cause


def claim_exit() -> None:
    """Says that the calling thread ends this process, and this module shall not: it has a reason of its own."""
    if _monitor is not None and not _claim(_monitor, "main"):
        time.sleep(_WRITING_SECONDS)  # Too late: it is being ended at this very moment.


def announce_failure(reason: str) -> None:
    """Tells the other workers why this one ends."""
    monitor = _monitor
    if monitor is not None and not monitor.all_finished.is_set() and not monitor.loss_known.is_set():
        text = f"{_name(monitor, monitor.rank)} has ended: {reason.rstrip('.')}"
        _send_and_flush(monitor, {"lost": text, "stacks": False, "restart_helps": False})


def requeue() -> None:
    """Has the job put back into the queue if it ends because a worker was lost, where that is for this one to do."""
    if _monitor is not None and _monitor.restart_helps:
        slurm_requeue.requeue(lost_chief=0 in _monitor.timed_out)


def _leave(monitor: HeartbeatMonitor) -> None:
    if not monitor.all_finished.is_set():
        _send_and_flush(monitor, {"over": True})


def _send_and_flush(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    told = threading.Event()
    monitor.loop.call_soon_threadsafe(lambda: (_announce(monitor, message), told.set()))
    told.wait(1.0)


def _claim(monitor: HeartbeatMonitor, who: str) -> bool:
    with monitor.lock:
        monitor.exit_claimed_by = monitor.exit_claimed_by or who
        return monitor.exit_claimed_by == who


async def _run(monitor: HeartbeatMonitor, listener: socket.socket | None) -> None:
    await asyncio.gather(
        _watch(monitor),
        _check_reachability(monitor),
        _serve_heartbeats(monitor, listener) if listener else _connect_to_chief(monitor),
    )


async def _serve_heartbeats(monitor: HeartbeatMonitor, listener: socket.socket) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):  # A stranger, such as a port scanner.
            hello = json.loads(await asyncio.wait_for(reader.readline(), monitor.options.connect_seconds))
            rank = hello.get("rank") if isinstance(hello, dict) else None
            known = type(rank) is int and rank in monitor.last_heartbeat and rank not in monitor.writers
            if known and hello.get("pid") == monitor.roster[rank]["pid"]:
                await _exchange_heartbeats(monitor, rank, reader, writer)
        writer.close()

    server = await asyncio.start_server(converse, sock=listener)
    await server.serve_forever()


async def _connect_to_chief(monitor: HeartbeatMonitor) -> None:
    host, _ = hostlist.split_address(monitor.roster[0]["address"])
    while True:  # Until `_watch` finds that the chief has been silent for too long.
        try:
            reader, writer = await asyncio.open_connection(host, monitor.roster[0]["heartbeat_port"])
            break
        except OSError:
            await asyncio.sleep(0.2)
    await _exchange_heartbeats(monitor, 0, reader, writer)


async def _exchange_heartbeats(
    monitor: HeartbeatMonitor, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Speaks with one worker until its connection ends."""
    monitor.writers[rank] = writer
    _announce(monitor, {})
    with contextlib.suppress(OSError):
        while line := await reader.readline():
            _receive(monitor, rank, json.loads(line))
    del monitor.writers[rank]
    if rank not in monitor.finished and not monitor.all_finished.is_set():
        _declare_lost(monitor, _lost(monitor, rank))


def _receive(monitor: HeartbeatMonitor, rank: int, message: dict[str, Any]) -> None:
    monitor.last_heartbeat[rank], monitor.last_step[rank] = time.monotonic(), message["step"]
    if "over" in message:
        _note_finished(monitor, rank)
    if "lost" in message:
        _declare_lost(monitor, message["lost"], stacks=message["stacks"], restart_helps=message["restart_helps"])


def _note_finished(monitor: HeartbeatMonitor, rank: int) -> None:
    """Notes that a worker has come to the end; the chief says so only when all have."""
    monitor.finished.add(rank)
    all_done = rank == 0 if monitor.rank else len(monitor.finished) == len(monitor.roster)
    if all_done or rank == monitor.rank != 0:
        _announce(monitor, {"over": True})
    if all_done:
        monitor.all_finished.set()  # From now on the process may end.


async def _watch(monitor: HeartbeatMonitor) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(min(_BEAT_SECONDS, monitor.options.heartbeat_seconds / 4))
        now = time.monotonic()
        if now - last > monitor.options.heartbeat_seconds / 2:
            # This process itself was stopped, by Slurm with all others perhaps: what they have said is still unread.
            monitor.last_heartbeat = {rank: moment + now - last for rank, moment in monitor.last_heartbeat.items()}
            monitor.last_execution = monitor.last_execution and monitor.last_execution + now - last
        last = now
        _announce(monitor, {})
        if monitor.all_finished.is_set():
            continue
        text, stacks = _silent_peers(monitor, now), False
        stall = monitor.options.stall_seconds
        if not text and stall and monitor.last_execution is not None and now - monitor.last_execution > stall:
            stalled = f"{_name(monitor, monitor.rank)} has finished no step for {now - monitor.last_execution:.1f} s"
            text, stacks = f"{stalled}: the last was step {monitor.step}", True
        if text:
            _declare_lost(monitor, text, stacks=stacks)


async def _check_reachability(monitor: HeartbeatMonitor) -> None:
    """Looks, while a call takes long, whether the workers that the chief speaks with can reach each other."""
    patience = monitor.options.heartbeat_seconds
    others = {
        w["rank"]: w["address"] for w in monitor.roster if w["rank"] not in (monitor.rank, *monitor.last_heartbeat)
    }

    def waits() -> bool:
        return (
            monitor.last_execution is not None
            and time.monotonic() - monitor.last_execution > patience
            and not monitor.all_finished.is_set()
        )

    rank, why = await reachability.first_unreachable_pair(others, patience / 2, waits)
    _declare_lost(monitor, f"{_name(monitor, monitor.rank)} cannot reach {_name(monitor, rank)}: {why}")


def _silent_peers(monitor: HeartbeatMonitor, now: float) -> str:
    """Names the workers that have been silent for too long."""
    silent = {rank: now - moment for rank, moment in monitor.last_heartbeat.items() if rank not in monitor.finished}
    for limit, met in ((monitor.options.heartbeat_seconds, True), (monitor.options.connect_seconds, False)):
        seconds = {rank: silent[rank] for rank in silent if (monitor.last_step[rank] is not None) == met}
        if any(one > limit for one in seconds.values()):
            # A cable takes all workers of a host away, though not at the same beat.
            return "; ".join(_lost(monitor, rank) for rank in seconds if seconds[rank] > limit / 2)
    return ""


def _declare_lost(monitor: HeartbeatMonitor, text: str, *, stacks: bool = False, restart_helps: bool = True) -> None:
    """Tells the other workers that one is lost, and ends this one, if it does not end by itself soon."""
    if not monitor.loss_known.is_set():
        monitor.cause, monitor.restart_helps = f"{text}. Start all workers again", restart_helps
        _announce(monitor, {"lost": text, "stacks": stacks, "restart_helps": restart_helps})
        monitor.loss_known.set()
        threading.Thread(target=_end, args=(monitor, stacks), daemon=True).start()


def _announce(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    """Tells all workers that this one speaks with."""
    line = json.dumps({"rank": monitor.rank, "pid": os.getpid(), "step": monitor.step} | message).encode() + b"\n"
    for writer in monitor.writers.values():
        writer.write(line)  # Never waits, and never fails: a connection's end is for its reader to notice.


def _end(monitor: HeartbeatMonitor, stacks: bool) -> None:
    if stacks:
        faulthandler.dump_traceback(all_threads=True)
    deadline = time.monotonic() + _WRITING_SECONDS
    time.sleep(_GRACE_SECONDS)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    if _claim(monitor, "heartbeat"):
        print(f"tfdist: worker {monitor.rank}: {monitor.cause}", file=sys.stderr, flush=True)
        requeue()
        os._exit(interruption.EXIT_PEER_LOST)


def _lost(monitor: HeartbeatMonitor, rank: int) -> str:
    step, seconds = monitor.last_step[rank], time.monotonic() - monitor.last_heartbeat[rank]
    when = "not heard of since the workers met" if step is None else f"last heard of at step {step}"
    if not monitor.loss_known.is_set():
        monitor.timed_out.add(rank)
    return f"{_name(monitor, rank)} is lost: {when}, {seconds:.1f} s ago"


def _name(monitor: HeartbeatMonitor, rank: int) -> str:
    return f"worker {rank} (host {monitor.roster[rank]['host']}, pid {monitor.roster[rank]['pid']})"
