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
_watching: "HeartbeatMonitor | None" = None


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """What this worker knows of the others; made by `watch`."""

    rank: int
    # One dict a worker in rank order, as `preflight.check` returns them.
    roster: Sequence[Mapping[str, Any]]
    options: config_lib.Cluster
    # The last step that this worker has finished, and when its last call was; None before the first.
    step: int = 0
    called: float | None = None
    # Of the workers that this one speaks with: when they were last heard of, at which step (None: never), and how
    # they are spoken to.
    heard: dict[int, float] = dataclasses.field(default_factory=dict)
    steps: dict[int, int | None] = dataclasses.field(default_factory=dict)
    writers: dict[int, asyncio.StreamWriter] = dataclasses.field(default_factory=dict)
    # Who has come to the end of the run; `over` when all have, and nobody is missed any more.
    done: set[int] = dataclasses.field(default_factory=set)
    over: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Who was lost, in words, once it is known.
    cause: str = ""
    known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Whether that is a reason to start again, and no error that a worker has told; whom this worker missed itself.
    again: bool = False
    missed: set[int] = dataclasses.field(default_factory=set)
    # Which thread ends this process: the first that says so.
    ender: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop = dataclasses.field(default_factory=asyncio.new_event_loop)

    def progress(self, step: int) -> None:
        """Notes that a call into TensorFlow has ended, after so many finished steps."""
        self.step, self.called = step, time.monotonic()

    def pause(self) -> None:
        """Notes that the caller does something else than steps, however long that lasts."""
        self.called = None

    def finish(self, seconds: float) -> None:
        """Waits until all workers have come here; afterwards nobody is missed.

        Raises:
            TimeoutError: some have not come within `seconds`.
        """
        self.called = None  # Waiting for a chief that writes is no stall.
        self.loop.call_soon_threadsafe(_finished, self, self.rank)
        deadline = time.monotonic() + seconds
        while not self.over.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > deadline:
                raise TimeoutError(f"Not all workers came to the end of the run within {seconds:g} s of this one.")


def listen(placement: WorkerSpec) -> socket.socket | None:
    """Opens the chief's port for the others, or any where that is taken; they are to be told which in the roster."""
    return rpc.listen_at_best(placement.heartbeat_port) if placement.rank == 0 < placement.num_workers - 1 else None


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
    global _watching
    _watching = peers = HeartbeatMonitor(rank=rank, roster=roster, options=options)
    spoken_with = [other for other in range(len(roster)) if (other == 0) != (rank == 0)]
    peers.heard, peers.steps = dict.fromkeys(spoken_with, time.monotonic()), dict.fromkeys(spoken_with)
    work = _run(peers, listener)
    threading.Thread(target=peers.loop.run_until_complete, args=(work,), name="peers", daemon=True).start()
    atexit.register(_leave, peers)  # Who ends in peace is not lost.
    return peers


def lost_peer(seconds: float) -> str:
    """Returns who was lost, in words, waiting so long for it to become known; "" where nobody was.

    The calling thread then has to end this process.
    """
    if _watching is None:
        return ""
    _watching.known.wait(seconds)
    claim_exit()
    return _watching.cause


def claim_exit() -> None:
    """Says that the calling thread ends this process, and this module shall not: it has a reason of its own."""
    if _watching is not None and not _claim(_watching, "main"):
        time.sleep(_WRITING_SECONDS)  # Too late: it is being ended at this very moment.


def announce_failure(reason: str) -> None:
    """Tells the other workers why this one ends."""
    peers = _watching
    if peers is not None and not peers.over.is_set() and not peers.known.is_set():
        text = f"{_name(peers, peers.rank)} has ended: {reason.rstrip('.')}"
        _watch_for_announced_exit(peers, {"lost": text, "stacks": False, "again": False})


def requeue() -> None:
    """Has the job put back into the queue if it ends because a worker was lost, where that is for this one to do."""
    if _watching is not None and _watching.again:
        slurm_requeue.requeue(lost_chief=0 in _watching.missed)


def _leave(peers: HeartbeatMonitor) -> None:
    if not peers.over.is_set():
        _watch_for_announced_exit(peers, {"over": True})


def _watch_for_announced_exit(peers: HeartbeatMonitor, message: dict[str, Any]) -> None:
    told = threading.Event()
    peers.loop.call_soon_threadsafe(lambda: (_announce(peers, message), told.set()))
    told.wait(1.0)


def _claim(peers: HeartbeatMonitor, who: str) -> bool:
    with peers.lock:
        peers.ender = peers.ender or who
        return peers.ender == who


async def _run(peers: HeartbeatMonitor, listener: socket.socket | None) -> None:
    await asyncio.gather(_watch(peers), _try_links(peers), _listen(peers, listener) if listener else _call_chief(peers))


async def _listen(peers: HeartbeatMonitor, listener: socket.socket) -> None:
    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):  # A stranger, such as a port scanner.
            hello = json.loads(await asyncio.wait_for(reader.readline(), peers.options.connect_seconds))
            rank = hello.get("rank") if isinstance(hello, dict) else None
            known = type(rank) is int and rank in peers.heard and rank not in peers.writers
            if known and hello.get("pid") == peers.roster[rank]["pid"]:
                await _exchange_heartbeats(peers, rank, reader, writer)
        writer.close()

    server = await asyncio.start_server(converse, sock=listener)
    await server.serve_forever()


async def _call_chief(peers: HeartbeatMonitor) -> None:
    host, _ = hostlist.split_address(peers.roster[0]["address"])
    while True:  # Until `_watch` finds that the chief has been silent for too long.
        try:
            reader, writer = await asyncio.open_connection(host, peers.roster[0]["heartbeat_port"])
            break
        except OSError:
            await asyncio.sleep(0.2)
    await _exchange_heartbeats(peers, 0, reader, writer)


async def _exchange_heartbeats(
    peers: HeartbeatMonitor, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Speaks with one worker until its connection ends."""
    peers.writers[rank] = writer
    _announce(peers, {})
    with contextlib.suppress(OSError):
        while line := await reader.readline():
            _receive(peers, rank, json.loads(line))
    del peers.writers[rank]
    if rank not in peers.done and not peers.over.is_set():
        _declare_lost(peers, _lost(peers, rank))


def _receive(peers: HeartbeatMonitor, rank: int, message: dict[str, Any]) -> None:
    peers.heard[rank], peers.steps[rank] = time.monotonic(), message["step"]
    if "over" in message:
        _finished(peers, rank)
    if "lost" in message:
        _declare_lost(peers, message["lost"], stacks=message["stacks"], again=message["again"])


def _finished(peers: HeartbeatMonitor, rank: int) -> None:
    """Notes that a worker has come to the end; the chief says so only when all have."""
    peers.done.add(rank)
    all_done = rank == 0 if peers.rank else len(peers.done) == len(peers.roster)
    if all_done or rank == peers.rank != 0:
        _announce(peers, {"over": True})
    if all_done:
        peers.over.set()  # From now on the process may end.


async def _watch(peers: HeartbeatMonitor) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(min(_BEAT_SECONDS, peers.options.heartbeat_seconds / 4))
        now = time.monotonic()
        if now - last > peers.options.heartbeat_seconds / 2:
            # This process itself was stopped, by Slurm with all others perhaps: what they have said is still unread.
            peers.heard = {rank: moment + now - last for rank, moment in peers.heard.items()}
            peers.called = peers.called and peers.called + now - last
        last = now
        _announce(peers, {})
        if peers.over.is_set():
            continue
        text, stacks = _silent_peers(peers, now), False
        stall = peers.options.stall_seconds
        if not text and stall and peers.called is not None and now - peers.called > stall:
            stalled = f"{_name(peers, peers.rank)} has finished no step for {now - peers.called:.1f} s"
            text, stacks = f"{stalled}: the last was step {peers.step}", True
        if text:
            _declare_lost(peers, text, stacks=stacks)


async def _try_links(peers: HeartbeatMonitor) -> None:
    """Looks, while a call takes long, whether the workers that the chief speaks with can reach each other."""
    patience = peers.options.heartbeat_seconds
    others = {w["rank"]: w["address"] for w in peers.roster if w["rank"] not in (peers.rank, *peers.heard)}

    def waits() -> bool:
        return peers.called is not None and time.monotonic() - peers.called > patience and not peers.over.is_set()

    rank, why = await reachability.first_unreachable_pair(others, patience / 2, waits)
    _declare_lost(peers, f"{_name(peers, peers.rank)} cannot reach {_name(peers, rank)}: {why}")


def _silent_peers(peers: HeartbeatMonitor, now: float) -> str:
    """Names the workers that have been silent for too long."""
    silent = {rank: now - moment for rank, moment in peers.heard.items() if rank not in peers.done}
    for limit, met in ((peers.options.heartbeat_seconds, True), (peers.options.connect_seconds, False)):
        seconds = {rank: silent[rank] for rank in silent if (peers.steps[rank] is not None) == met}
        if any(one > limit for one in seconds.values()):
            # A cable takes all workers of a host away, though not at the same beat.
            return "; ".join(_lost(peers, rank) for rank in seconds if seconds[rank] > limit / 2)
    return ""


def _declare_lost(peers: HeartbeatMonitor, text: str, *, stacks: bool = False, again: bool = True) -> None:
    """Tells the other workers that one is lost, and ends this one, if it does not end by itself soon."""
    if not peers.known.is_set():
        peers.cause, peers.again = f"{text}. Start all workers again", again
        _announce(peers, {"lost": text, "stacks": stacks, "again": again})
        peers.known.set()
        threading.Thread(target=_end, args=(peers, stacks), daemon=True).start()


def _announce(peers: HeartbeatMonitor, message: dict[str, Any]) -> None:
    """Tells all workers that this one speaks with."""
    line = json.dumps({"rank": peers.rank, "pid": os.getpid(), "step": peers.step} | message).encode() + b"\n"
    for writer in peers.writers.values():
        writer.write(line)  # Never waits, and never fails: a connection's end is for its reader to notice.


def _end(peers: HeartbeatMonitor, stacks: bool) -> None:
    if stacks:
        faulthandler.dump_traceback(all_threads=True)
    deadline = time.monotonic() + _WRITING_SECONDS
    time.sleep(_GRACE_SECONDS)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    if _claim(peers, "peers"):
        print(f"tfdist: worker {peers.rank}: {peers.cause}", file=sys.stderr, flush=True)
        requeue()
        os._exit(interruption.EXIT_PEER_LOST)


def _lost(peers: HeartbeatMonitor, rank: int) -> str:
    step, seconds = peers.steps[rank], time.monotonic() - peers.heard[rank]
    when = "not heard of since the workers met" if step is None else f"last heard of at step {step}"
    if not peers.known.is_set():
        peers.missed.add(rank)
    return f"{_name(peers, rank)} is lost: {when}, {seconds:.1f} s ago"


def _name(peers: HeartbeatMonitor, rank: int) -> str:
    return f"worker {rank} (host {peers.roster[rank]['host']}, pid {peers.roster[rank]['pid']})"
