"""The monitor in a worker's process: its progress, its stalls, and its exit after another worker is lost.

With several workers, the monitor's thread reports the main thread's progress to the watchdog process (watchdog.py),
which reports lost workers to it. After a loss, the main thread has a few seconds to exit by itself: TensorFlow usually
fails, and error_report.py gets the reason from `wait_for_loss`. If the main thread hangs in a collective instead, the
monitor's thread ends the process. Imports no TensorFlow.
"""

import atexit
import contextlib
import dataclasses
import faulthandler
import functools
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption, slurm_requeue

# Maximum seconds between two checks.
_INTERVAL_SECONDS = 1.0
# Seconds in which the main thread may exit by itself after a loss.
_GRACE_SECONDS = 2.0
# Seconds for other non-daemon threads to finish, such as the writer of a checkpoint.
_WRITING_SECONDS = 60.0
# Time limit in seconds for `_before_exit`, which records how the run ended.
_LAST_SECONDS = 10.0
# Error of several_workers/tcp_ring.py for a broken connection: the rank of the other worker, and the reason.
BROKEN_RING = "no connection with worker {}: {}"
# Start of the error of the same file if the workers sum different tensors.
DIFFERENT_GRAPHS = "the workers compute different graphs"


class ChiefFailedError(RuntimeError):
    """The chief failed in a block that the other workers wait for; the chief shows the error itself."""


class MessageReader:
    """Calls `handle` with each message, a line of JSON, that is read from a pipe."""

    def __init__(self, handle: Callable[[dict[str, Any]], None]):
        self._handle, self._data = handle, b""

    def read(self, descriptor: int) -> bool:
        """Reads what has arrived; returns False if the other end is closed."""
        data = os.read(descriptor, 65536)
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(data)


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """What one worker knows of itself and of the run; created by `start`."""

    rank: int
    # One dict per worker in rank order, as returned by `rendezvous.rendezvous`.
    members: Sequence[Mapping[str, Any]]
    options: config_lib.ClusterOptions
    # With several workers, the process that exchanges heartbeats with the others.
    watchdog: subprocess.Popen | None = None
    # The last completed step, and when the last execution ended; None: the stall timer is stopped.
    step: int = 0
    last_execution: float | None = None
    # True once an execution has ended.
    has_executed: bool = False
    # Purpose and start time of the collective that this worker is in; None: it is in none.
    collective: tuple[str, float] | None = None
    # Number of nested blocks of `pause_timers` on this worker, and the last time at which any worker was in one.
    pauses: int = 0
    last_pause: float = 0.0
    # When the last suspension of this process was detected.
    resumed: float = 0.0
    # The path that the main thread waits for, and since when (`time.monotonic`); None: no file.
    waits_for_file: Callable[[], tuple[str, float] | None] = lambda: None
    # Seconds that a write may take. A wait for a file, and an exit while a thread writes, may last at least as long.
    writing_seconds: Callable[[], float] = lambda: 0.0
    # True while any other worker is in a block of `pause_timers`.
    others_paused: bool = False
    # Once it is set, lost workers are ignored.
    all_finished: threading.Event = dataclasses.field(default_factory=threading.Event)
    # The lost worker, as `Peers.loss`, once `loss_known` is set.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Acquired, and never released, by the thread that ends this process.
    exiting: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    # Held while a message is written to the watchdog process.
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def note_progress(self, step: int) -> None:
        """Notes that an execution has ended after `step` completed steps."""
        self.step, self.last_execution, self.has_executed = step, time.monotonic(), True

    def stop_timer(self) -> None:
        """Stops the stall timer until the next execution ends."""
        self.last_execution = None

    @contextlib.contextmanager
    def pause_timers(self) -> Iterator[None]:
        """Stops the stall timers of all workers in a block that may take any time, such as a callback or a save."""
        self.pauses += 1
        try:
            yield
        finally:
            self.last_pause = time.monotonic()
            self.pauses -= 1

    @contextlib.contextmanager
    def in_collective(self, purpose: str) -> Iterator[None]:
        """Marks a block as a collective, which waits for all workers; `purpose` names it in messages: "a broadcast"."""
        self.collective = (outer := self.collective) or (purpose, time.monotonic())
        try:
            yield
        finally:
            self.collective = outer

    def wait_until_finished(self, seconds: float) -> None:
        """Waits until all workers have finished; after that, lost workers are ignored.

        Raises:
            TimeoutError: some workers did not finish within `seconds` after this call, or after the last block of
                `pause_timers`.
        """
        self.stop_timer()  # Waiting for the chief, which may still write files, is not a stall.
        self.tell({"finished": True})
        started = time.monotonic()
        while not self.all_finished.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > max(started, self.last_pause) + seconds:
                raise TimeoutError(f"Some workers did not finish within {seconds:g} s after this one.")

    def mark_lost(self, text: str, *, stacks: bool = False, is_transient: bool = True, **more: Any) -> None:
        """Reports a lost worker to all workers; this process is ended unless it soon exits by itself.

        Args:
            text: describes the worker and the reason.
            stacks: whether to write the stack traces of all threads to standard error.
            is_transient: True if a worker was lost; False if it reported an error, which a restart would repeat.
            **more: `absent_in`, a collective and advice: the chief then adds which workers have not entered it.
        """
        self.tell({"lost": text, "stacks": stacks, "is_transient": is_transient} | more)

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message to the watchdog process; a single worker has none, and handles the message itself."""
        if self.watchdog is None:
            self.receive(message)
            return
        if os.getpid() != self.members[self.rank]["pid"]:  # A forked child.
            return
        with contextlib.suppress(OSError), self.sending:  # If the watchdog has ended, the thread notices.
            self.watchdog.stdin.write(json.dumps(message).encode() + b"\n")
            self.watchdog.stdin.flush()

    def receive(self, message: dict[str, Any]) -> None:
        """Handles a message from the watchdog process."""
        self.others_paused = message.get("others_paused", self.others_paused)
        if "finished" in message:
            self.all_finished.set()  # From now on the process may exit.
        if "lost" in message and not self.loss:
            self.loss = message
            self.loss_known.set()


# The monitor of this process; a process has at most one cluster.
_monitor: HeartbeatMonitor | None = None
# Called with a description of the loss before the monitor's thread ends this process; None: nothing is called.
_before_exit: Callable[[str], object] | None = None


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    options: config_lib.ClusterOptions,
    watchdog: subprocess.Popen | None = None,
) -> HeartbeatMonitor:
    """Starts the monitor and its thread; every worker calls it once per process.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`.
        options: `heartbeat_seconds`, `stall_seconds` and `first_stall_seconds`.
        watchdog: with several workers, the process that `watchdog.start` has started.
    """
    global _monitor
    _monitor = monitor = HeartbeatMonitor(rank=rank, members=members, options=options, watchdog=watchdog)
    with interruption.block_signals():  # The thread must not receive them in place of the main thread.
        # The time of this call, because the process may be suspended before the thread runs.
        threading.Thread(target=_watch, args=(monitor, time.monotonic()), name="heartbeat", daemon=True).start()
    atexit.register(_announce_exit, monitor)
    return monitor


def _watch(monitor: HeartbeatMonitor, last: float) -> None:
    """Runs in a thread, started at `last`: checks this worker for stalls, and ends the process after a loss."""
    reader = MessageReader(monitor.receive)
    pause = min(_INTERVAL_SECONDS, monitor.options.heartbeat_seconds / 4)
    while monitor is _monitor and not monitor.loss:  # Tests start several.
        if monitor.watchdog is None:
            monitor.loss_known.wait(pause)
        elif select.select([monitor.watchdog.stdout], [], [], max(0.0, last + pause - time.monotonic()))[0]:
            if reader.read(monitor.watchdog.stdout.fileno()):
                continue
            if not monitor.all_finished.is_set():
                name = worker_name(monitor, monitor.rank)
                monitor.receive({"lost": f"the watchdog process of {name} has ended", "is_transient": True})
            break
        now = time.monotonic()
        _report_progress(monitor, last, now)
        last = now
    if monitor.loss:
        _exit_after_loss(monitor)


def _report_progress(monitor: HeartbeatMonitor, last: float, now: float) -> None:
    """Reports this worker's progress, and a stall if there is one at `now`; `last`: time of the previous call."""
    if now - last > monitor.options.heartbeat_seconds / 2:  # This process was suspended.
        monitor.last_pause = monitor.resumed = now
    paused = monitor.pauses > 0 or monitor.waits_for_file() is not None  # Files have their own limit.
    monitor.tell({"step": monitor.step, "waits": monitor.collective, "paused": paused})
    if paused or monitor.others_paused:
        monitor.last_pause = now
    if not monitor.all_finished.is_set() and (text := describe_stall(monitor, now)):
        monitor.mark_lost(text, stacks=True)


def describe_stall(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if an execution of this worker, or its wait for a file, takes too long; "" otherwise.

    The timer of an execution starts at the end of the previous one. Until the first one has ended, each collective has
    its own timer. Both start again after a block of `pause_timers` on any worker. For a single worker, time outside of
    collectives does not count: no other worker waits for it, and it may be in a notebook or a debugger.
    """
    options, name = monitor.options, worker_name(monitor, monitor.rank)
    if (waits := monitor.waits_for_file()) is not None:
        seconds, limit = now - max(waits[1], monitor.resumed), options.stall_seconds
        if not limit or seconds <= max(limit, monitor.writing_seconds()):
            return ""
        more = "or raise config.cluster.stall_seconds if it is only slow"
        return f"{name} has waited for {waits[0]} for {seconds:.1f} s: repair its file system, {more}"
    collective, last = monitor.collective, monitor.last_execution
    if last is not None and len(monitor.members) == 1:
        last = None if collective is None else max(last, collective[1])
    if last is not None and options.stall_seconds:
        seconds = now - max(last, monitor.last_pause)
        if seconds > options.stall_seconds:
            return f"{name} has not completed a step for {seconds:.1f} s (last step: {monitor.step})"
    elif collective is not None and not monitor.has_executed and options.first_stall_seconds:
        seconds = now - max(collective[1], monitor.last_pause)
        if seconds > options.first_stall_seconds:
            for_all = "for all workers " if len(monitor.members) > 1 else ""
            return (
                f"{name} has waited {for_all}for {seconds:.1f} s, in {collective[0]}, and no execution has "
                "ended yet (config.cluster.first_stall_seconds)"
            )
    return ""


def wait_for_loss(seconds: float) -> str:
    """Waits up to `seconds` for a loss; returns its description and advice, or "" if no worker is lost."""
    if _monitor is None or len(_monitor.members) == 1:
        return ""
    _monitor.loss_known.wait(seconds)
    return reason_of_exit(_monitor)


def mark_broken_ring(error: str) -> str:
    """If `error` is a broken connection of the TCP ring, announces it and returns its description; else returns ""."""
    found = re.search(BROKEN_RING.format(r"(\d+)", "(.*)"), error)
    if _monitor is None or found is None:
        return ""
    this, other = (worker_name(_monitor, rank) for rank in (_monitor.rank, int(found[1])))
    # The other worker may have left the script; then a restart does not help.
    _monitor.mark_lost(f"{this} has no connection with {other}: {found[2]}", is_transient=False)
    return wait_for_loss(_GRACE_SECONDS)


def call_before_exit(function: Callable[[str], object] | None) -> None:
    """Sets the function that is called with a description of a loss before a thread ends this process; None: none."""
    global _before_exit
    _before_exit = function


def reserve_exit() -> None:
    """Reserves the end of this process for the calling thread, so that only its reason is reported."""
    if _monitor is not None and not _monitor.exiting.acquire(blocking=False):
        time.sleep(writing_seconds())  # Too late: another thread is ending the process.


def reported_by_another(reason: str, seconds: float) -> bool:
    """Returns whether another worker announces the same failure within `seconds`; False on the chief.

    All workers run the same code, so a mistake in it fails on all of them; only one has to show it.
    """
    if _monitor is None or _monitor.rank == 0:
        return False
    _monitor.loss_known.wait(seconds)
    return bool(reason) and reason.rstrip(".") in reason_of_exit(_monitor)


def announce_failure(reason: str) -> None:
    """Announces to the other workers why this one exits."""
    if _monitor is not None:
        _monitor.tell({"ended": f"{worker_name(_monitor, _monitor.rank)} has ended: {reason.rstrip('.')}"})


def _announce_exit(monitor: HeartbeatMonitor) -> None:
    """Announces a normal exit, so that this worker is not reported as lost."""
    if not monitor.all_finished.is_set():
        monitor.tell({"finished": True})


def requeue() -> None:
    """Requeues the Slurm job if this process ends because a worker was lost or missing, but not if one had an error."""
    if _monitor is None or _monitor.loss.get("is_transient"):
        slurm_requeue.requeue(in_turn=True)


def reason_of_exit(monitor: HeartbeatMonitor) -> str:
    """Returns a description of the loss, and what to do; "" if no worker is lost."""
    advice = "Restart all workers" if len(monitor.members) > 1 else "Run the same command to resume"
    return f"{monitor.loss['lost']}. {advice}" if monitor.loss else ""


def worker_name(monitor: HeartbeatMonitor, rank: int) -> str:
    """Returns the name of a worker in messages."""
    return f"worker {rank} (host {monitor.members[rank]['host']}, pid {monitor.members[rank]['pid']})"


def writing_seconds() -> float:
    """Returns how many seconds an ending process waits for a checkpoint that is being written."""
    if _monitor is None:
        return _WRITING_SECONDS
    return max(min(_WRITING_SECONDS, _monitor.options.stall_seconds or _WRITING_SECONDS), _monitor.writing_seconds())


def await_writers() -> None:
    """Waits up to `writing_seconds` for all threads that may be writing a checkpoint."""
    deadline = time.monotonic() + writing_seconds()
    time.sleep(_GRACE_SECONDS)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def _exit_after_loss(monitor: HeartbeatMonitor) -> None:
    """Ends this process unless it soon exits by itself."""
    if monitor.loss.get("stacks"):
        faulthandler.dump_traceback(all_threads=True)
    await_writers()
    if monitor.exiting.acquire(blocking=False):
        reason = reason_of_exit(monitor)
        worker = f"worker {monitor.rank}: " if len(monitor.members) > 1 else ""
        print(f"tfdist: {worker}{reason}", file=sys.stderr, flush=True)
        if _before_exit is not None:
            interruption.within(_LAST_SECONDS, functools.partial(_before_exit, reason))
        requeue()
        interruption.end_process(interruption.EXIT_PEER_LOST)
