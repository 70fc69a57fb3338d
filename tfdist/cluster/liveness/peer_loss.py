"""The state of the heartbeat monitor, and the end of this process after another worker is lost. Imports no TensorFlow.

After a loss the main thread has a few seconds to exit by itself: TensorFlow usually fails, and error_report.py reads
the cause from `name_loss`. If it hangs in a collective instead, a thread ends the process.
"""

import asyncio
import contextlib
import dataclasses
import faulthandler
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption

# Seconds in which the main thread may exit by itself after a loss.
_GRACE_SECONDS = 2.0
# Seconds that other non-daemon threads may take to finish, such as the writer of a checkpoint.
_WRITING_SECONDS = 60.0
# Seconds in which the end is recorded.
_LAST_SECONDS = 10.0
# Workers of one machine that read the chief's last message in a second, at least; and seconds for all, at most.
_READERS_PER_SECOND, _READING_SECONDS = 10, 120.0
# How an error of several_workers/tcp_ring.py names a connection that is broken: the rank of the other, and a reason.
BROKEN_RING = "no connection with worker {}: {}"
# How it begins to say that two workers sum different numbers.
DIFFERENT_GRAPHS = "the workers compute different graphs"


class ChiefFailedError(RuntimeError):
    """The chief failed in a block that the other workers wait for; the chief shows the error itself."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Peer:
    """Another worker that sends heartbeats to this one."""

    # When the last heartbeat came, or the monitor started; as `time.monotonic`.
    last_heartbeat: float
    # Its last completed step; None: no heartbeat yet.
    step: int | None = None
    # The call in which it waits for all others, in words, and the seconds since; None: it is in no such call.
    waits: tuple[str, float] | None = None
    # True if it is in a block of `HeartbeatMonitor.pause_timers`, or, from the chief, if any worker is.
    paused: bool = False
    # When its watchdog process confirmed that it is running although it sends no heartbeats.
    last_alive: float = 0.0
    # Sends it a message, and neither blocks nor raises; None: there is no connection.
    send: Callable[[bytes], None] | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Progress:
    """What this worker does, as its main thread notes it."""

    # The last completed step, and when the last execution ended; None: no execution is under way.
    step: int = 0
    last_execution: float | None = None
    # True as soon as an execution has ended.
    started: bool = False
    # The call in which this worker waits for all others, in words, and since when; None: it is in no such call.
    collective: tuple[str, float] | None = None
    # Blocks of `pause_timers` that this worker is in; the last moment at which it or a connected worker was in one.
    pauses: int = 0
    last_pause: float = 0.0
    # When the process was last found to have been suspended.
    resumed: float = 0.0


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """The heartbeats of the other workers, seen from one worker; created by `heartbeat.start`."""

    rank: int
    # One dict per worker in rank order, as returned by `rendezvous.rendezvous`.
    members: Sequence[Mapping[str, Any]]
    options: config_lib.ClusterOptions
    progress: Progress = dataclasses.field(default_factory=Progress)
    # The workers that send heartbeats to this one: the chief, or on the chief all others.
    peers: dict[int, Peer] = dataclasses.field(default_factory=dict)
    # Sends a message to all connected workers; called in the monitor's thread. One worker has nobody to send it to.
    announce: Callable[[dict[str, Any]], None] = lambda message: None
    # Seconds that a checkpoint may take to be written after a loss, if more than `_WRITING_SECONDS`.
    writing_seconds: Callable[[], float] = lambda: 0.0
    # What the main thread waits for, a path, and since when, as `time.monotonic`; None: for no file.
    waits_for_file: Callable[[], tuple[str, float] | None] = lambda: None
    # Workers that have finished the run. After `all_finished`, missing heartbeats are ignored.
    finished: set[int] = dataclasses.field(default_factory=set)
    all_finished: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Once `loss_known` is set: what the messages to the others say of the lost worker; see `declare_lost`.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Ranks whose loss this worker detected itself.
    found_lost: set[int] = dataclasses.field(default_factory=set)
    # The thread that ends this process: the first that claims it.
    exit_claimed_by: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop = dataclasses.field(default_factory=asyncio.new_event_loop)
    created: float = dataclasses.field(default_factory=time.monotonic)

    def note_progress(self, step: int) -> None:
        """Notes that an execution has ended after `step` completed steps."""
        self.progress.step, self.progress.last_execution, self.progress.started = step, time.monotonic(), True

    def is_paused(self) -> bool:
        """Returns whether this worker is in a block of `pause_timers`, or waits for a file, which has its own limit."""
        return self.progress.pauses > 0 or self.waits_for_file() is not None

    def stop_timer(self) -> None:
        """Stops the stall timer until the next heartbeat."""
        self.progress.last_execution = None

    @contextlib.contextmanager
    def pause_timers(self) -> Iterator[None]:
        """Stops the stall timers of all workers in a block that may take any time, such as a callback or a save."""
        self.progress.pauses += 1
        try:
            yield
        finally:
            self.progress.last_pause = time.monotonic()
            self.progress.pauses -= 1

    @contextlib.contextmanager
    def in_collective(self, purpose: str) -> Iterator[None]:
        """Notes that this worker waits for all others in a block."""
        self.progress.collective = (outer := self.progress.collective) or (purpose, time.monotonic())
        try:
            yield
        finally:
            self.progress.collective = outer

    def wait_until_finished(self, seconds: float) -> None:
        """Waits until all workers have finished; after that, missing heartbeats are ignored.

        Raises:
            TimeoutError: some workers did not finish within `seconds`, not counting blocks of `pause_timers`.
        """
        self.progress.last_execution = None  # Waiting for the chief, which may still write files, is not a stall.
        self.loop.call_soon_threadsafe(note_finished, self, self.rank)
        started = time.monotonic()
        while not self.all_finished.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > max(started, self.progress.last_pause) + seconds:
                raise TimeoutError(f"Some workers did not finish within {seconds:g} s after this one.")


# The monitor of this process; a process has at most one cluster.
_monitor: HeartbeatMonitor | None = None
# Called with the lost worker, in words, before a thread ends this process; None: nothing is.
_before_exit: Callable[[str], Any] | None = None


def register(monitor: HeartbeatMonitor) -> None:
    """Makes `monitor` the one that the functions without a monitor argument use."""
    global _monitor
    _monitor = monitor


def is_registered(monitor: HeartbeatMonitor) -> bool:
    """Returns whether `monitor` is that of the last cluster of this process; tests make several."""
    return monitor is _monitor


def name_loss(seconds: float) -> str:
    """Returns the lost worker, in words, as soon as it is known, at most after `seconds`; "" if no worker is lost."""
    if _monitor is None or len(_monitor.members) == 1:
        return ""
    _monitor.loss_known.wait(seconds)
    return cause(_monitor)


def declare_broken_ring(error: str) -> str:
    """Announces which connection is broken if `error` is one of the ring over TCP; returns it in words, or ""."""
    found = re.search(BROKEN_RING.format(r"(\d+)", "(.*)"), error)
    if _monitor is None or found is None:
        return ""
    this, other = (worker_name(_monitor, rank) for rank in (_monitor.rank, int(found[1])))
    text = f"{this} has no connection with {other}: {found[2]}"
    # The other may have left the script: then a restart does not help.
    declare = functools.partial(declare_lost, _monitor, text, restart_helps=False)
    _monitor.loop.call_soon_threadsafe(declare)
    _monitor.loss_known.wait(_GRACE_SECONDS)
    return cause(_monitor)


def named_workers(error: str) -> list[str]:
    """Returns the other workers that a message of TensorFlow names as `/job:worker/replica:0/task:1`."""
    if _monitor is None:
        return []
    ranks = {int(rank) for rank in re.findall(r"/job:worker/(?:replica:\d+/)?task:(\d{1,9})\b", error)}
    return [worker_name(_monitor, rank) for rank in sorted(ranks - {_monitor.rank}) if rank < len(_monitor.members)]


def call_before_exit(function: Callable[[str], Any] | None) -> None:
    """Sets what is called with the lost worker, in words, before a thread ends this process; None: nothing."""
    global _before_exit
    _before_exit = function


def claim_exit() -> None:
    """Makes the calling thread the one that ends this process, for a reason of its own."""
    if _monitor is not None and not _claim(_monitor, "main"):
        time.sleep(writing_seconds())  # Too late: another thread is ending the process.


def reported_by_another(reason: str, seconds: float) -> bool:
    """Returns, on workers other than the chief, whether another one announces the same failure within `seconds`.

    All workers run the same code, so a mistake in it fails on all of them: one shows it.
    """
    if _monitor is None or _monitor.rank == 0:
        return False
    _monitor.loss_known.wait(seconds)
    return bool(reason) and reason.rstrip(".") in cause(_monitor)


def announce_failure(reason: str) -> None:
    """Announces to the other workers why this one exits."""
    monitor = _monitor
    if monitor is not None and not monitor.all_finished.is_set() and not monitor.loss_known.is_set():
        text = f"{worker_name(monitor, monitor.rank)} has ended: {reason.rstrip('.')}"
        _send_and_flush(monitor, {"lost": text, "stacks": False, "restart_helps": False})


def announce_exit(monitor: HeartbeatMonitor) -> None:
    """Announces a normal exit, so that this worker is not reported as lost."""
    if not monitor.all_finished.is_set():
        _send_and_flush(monitor, {"finished": True})


def requeue(missing: Collection[int] = ()) -> None:
    """Requeues the Slurm job if this process ends because a worker was lost, and if it is the one to do so.

    `missing`: the ranks of workers that did not connect, if this process ends before there is a monitor.
    """
    if _monitor is None:
        interruption.requeue(missing)
    elif _monitor.loss.get("restart_helps"):
        interruption.requeue(_monitor.found_lost, substitutes=True)


def note_finished(monitor: HeartbeatMonitor, rank: int) -> None:
    """Notes that a worker has finished; the chief announces it once all have. Runs in the monitor's thread."""
    monitor.finished.add(rank)
    all_done = rank == 0 if monitor.rank else len(monitor.finished) == len(monitor.members)
    if all_done or rank == monitor.rank != 0:
        monitor.announce({"finished": True})
    if all_done:
        monitor.all_finished.set()  # From now on the process may exit.


def connected_ranks(monitor: HeartbeatMonitor) -> set[int]:
    """Returns the ranks of the workers to which there is a connection."""
    return {rank for rank, peer in monitor.peers.items() if peer.send is not None}


def cause(monitor: HeartbeatMonitor) -> str:
    """Returns the lost worker, in words, and what to do; "" if no worker is lost."""
    advice = "Restart all workers" if len(monitor.members) > 1 else "Run the same command to resume"
    return f"{monitor.loss['lost']}. {advice}" if monitor.loss else ""


def declare_lost(monitor: HeartbeatMonitor, text: str, *, stacks: bool = False, restart_helps: bool = True) -> None:
    """Announces a lost worker, and ends this process if it does not exit by itself soon.

    Args:
        monitor: the monitor; the call must come from its thread.
        text: the lost worker and the reason, in words.
        stacks: write the stack traces of all threads to standard error.
        restart_helps: True if a worker was lost; False if it reported an error, which a restart would repeat.
    """
    if not monitor.loss_known.is_set():
        monitor.loss = {"lost": text, "stacks": stacks, "restart_helps": restart_helps}
        monitor.announce({})
        monitor.loss_known.set()


def worker_name(monitor: HeartbeatMonitor, rank: int) -> str:
    """Returns the name of a worker in messages."""
    return f"worker {rank} (host {monitor.members[rank]['host']}, pid {monitor.members[rank]['pid']})"


def _send_and_flush(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    sent = threading.Event()
    monitor.loop.call_soon_threadsafe(lambda: (monitor.announce(message), sent.set()))
    sent.wait(1.0)


def _claim(monitor: HeartbeatMonitor, thread: str) -> bool:
    with monitor.lock:
        monitor.exit_claimed_by = monitor.exit_claimed_by or thread
        return monitor.exit_claimed_by == thread


def writing_seconds() -> float:
    """Returns how long a process that ends waits for a checkpoint that is being written."""
    if _monitor is None:
        return _WRITING_SECONDS
    return max(min(_WRITING_SECONDS, _monitor.options.stall_seconds or _WRITING_SECONDS), _monitor.writing_seconds())


def await_writers() -> None:
    """Waits for the threads that may be writing a checkpoint, each for a limited time."""
    deadline = time.monotonic() + writing_seconds()
    time.sleep(_GRACE_SECONDS)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def exit_after_loss(monitor: HeartbeatMonitor) -> None:
    """Waits until a loss is known, and ends this process if it does not exit by itself soon. Runs in a thread."""
    monitor.loss_known.wait()
    if monitor.loss["stacks"]:
        faulthandler.dump_traceback(all_threads=True)
    await_writers()
    # A worker that has not read the message would lose it with the connection, and name the chief.
    limit = time.monotonic() + min(_READING_SECONDS, len(monitor.members) / _READERS_PER_SECOND)
    while monitor.rank == 0 and connected_ranks(monitor) - monitor.found_lost and time.monotonic() < limit:
        time.sleep(0.1)
    if _claim(monitor, "heartbeat"):
        worker = f"worker {monitor.rank}: " if len(monitor.members) > 1 else ""
        print(f"tfdist: {worker}{cause(monitor)}", file=sys.stderr, flush=True)
        if _before_exit is not None:
            interruption.within(_LAST_SECONDS, functools.partial(_before_exit, cause(monitor)))
        requeue()
        os._exit(interruption.EXIT_PEER_LOST)
