"""The state of the heartbeat monitor, and the end of this process after another worker is lost. Imports no TensorFlow.

After a loss the main thread has a few seconds to exit by itself: TensorFlow usually fails, and process_exit.py reads
the cause from `lost_peer`. If it hangs in a collective instead, a thread ends the process.
"""

import asyncio
import dataclasses
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption, slurm_requeue

# Seconds in which the main thread may exit by itself after a loss.
_GRACE_SECONDS = 2.0
# Seconds that other non-daemon threads may take to finish, such as the writer of a checkpoint.
_WRITING_SECONDS = 60.0


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """The heartbeats of the other workers, seen from one worker; created by `heartbeat.start`."""

    rank: int
    # One dict per worker in rank order, as returned by `preflight.rendezvous`.
    members: Sequence[Mapping[str, Any]]
    options: config_lib.Cluster
    # The last completed step of this worker, and when its last execution ended; None: no execution is under way.
    step: int = 0
    last_execution: float | None = None
    # Of each connected worker: time of the last heartbeat, its step (None: no heartbeat yet), and the connection.
    last_heartbeat: dict[int, float] = dataclasses.field(default_factory=dict)
    last_step: dict[int, int | None] = dataclasses.field(default_factory=dict)
    writers: dict[int, asyncio.StreamWriter] = dataclasses.field(default_factory=dict)
    # Workers that have finished the run. After `all_finished`, missing heartbeats are ignored.
    finished: set[int] = dataclasses.field(default_factory=set)
    all_finished: threading.Event = dataclasses.field(default_factory=threading.Event)
    # The lost worker, in words; valid once `loss_known` is set.
    cause: str = ""
    loss_known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # True if a worker was lost; False if it reported an error, which a restart would repeat.
    restart_helps: bool = False
    # Ranks whose loss this worker detected itself.
    timed_out: set[int] = dataclasses.field(default_factory=set)
    # The thread that ends this process: the first that claims it.
    exit_claimed_by: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    loop: asyncio.AbstractEventLoop = dataclasses.field(default_factory=asyncio.new_event_loop)

    def heartbeat(self, step: int) -> None:
        """Notes that an execution has ended after `step` completed steps."""
        self.step, self.last_execution = step, time.monotonic()

    def pause(self) -> None:
        """Stops the stall timer until the next heartbeat."""
        self.last_execution = None

    def finish(self, seconds: float) -> None:
        """Waits until all workers have finished; after that, missing heartbeats are ignored.

        Raises:
            TimeoutError: some workers did not finish within `seconds`.
        """
        self.last_execution = None  # Waiting for the chief, which may still write files, is not a stall.
        self.loop.call_soon_threadsafe(note_finished, self, self.rank)
        deadline = time.monotonic() + seconds
        while not self.all_finished.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > deadline:
                raise TimeoutError(f"Some workers did not finish within {seconds:g} s after this one.")


# The monitor of this process; a process has at most one cluster.
_monitor: HeartbeatMonitor | None = None


def register(monitor: HeartbeatMonitor) -> None:
    """Makes `monitor` the one that the functions without a monitor argument use."""
    global _monitor
    _monitor = monitor


def lost_peer(seconds: float) -> str:
    """Returns the lost worker, in words, as soon as it is known, at most after `seconds`; "" if no worker is lost.

    The calling thread must then end this process.
    """
    if _monitor is None:
        return ""
    _monitor.loss_known.wait(seconds)
    claim_exit()
    return _monitor.cause


def claim_exit() -> None:
    """Makes the calling thread the one that ends this process, for a reason of its own."""
    if _monitor is not None and not _claim(_monitor, "main"):
        time.sleep(_WRITING_SECONDS)  # Too late: another thread is ending the process.


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


def requeue() -> None:
    """Requeues the Slurm job if this process ends because a worker was lost, and if it is the one to do so."""
    if _monitor is not None and _monitor.restart_helps:
        slurm_requeue.requeue(lost_chief=0 in _monitor.timed_out)


def note_finished(monitor: HeartbeatMonitor, rank: int) -> None:
    """Notes that a worker has finished; the chief announces it once all have. Runs in the monitor's thread."""
    monitor.finished.add(rank)
    all_done = rank == 0 if monitor.rank else len(monitor.finished) == len(monitor.members)
    if all_done or rank == monitor.rank != 0:
        announce(monitor, {"finished": True})
    if all_done:
        monitor.all_finished.set()  # From now on the process may exit.


def announce(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    """Sends a message with the present step to all connected workers. Runs in the monitor's thread."""
    line = json.dumps({"rank": monitor.rank, "pid": os.getpid(), "step": monitor.step} | message).encode() + b"\n"
    for writer in monitor.writers.values():
        writer.write(line)  # Does not block or raise: the reader notices a closed connection.


def declare_lost(monitor: HeartbeatMonitor, text: str, *, stacks: bool = False, restart_helps: bool = True) -> None:
    """Announces a lost worker, and ends this process if it does not exit by itself soon.

    Args:
        monitor: the monitor; the call must come from its thread.
        text: the lost worker and the reason, in words.
        stacks: write the stack traces of all threads to standard error.
        restart_helps: see `HeartbeatMonitor`.
    """
    if not monitor.loss_known.is_set():
        monitor.cause, monitor.restart_helps = f"{text}. Restart all workers", restart_helps
        announce(monitor, {"lost": text, "stacks": stacks, "restart_helps": restart_helps})
        monitor.loss_known.set()
        threading.Thread(target=_exit, args=(monitor, stacks), daemon=True).start()


def describe(monitor: HeartbeatMonitor, rank: int) -> str:
    """Notes that this worker detected the loss of another one, and returns it in words."""
    step, seconds = monitor.last_step[rank], time.monotonic() - monitor.last_heartbeat[rank]
    when = "no heartbeat since the rendezvous" if step is None else f"last heartbeat at step {step}"
    if not monitor.loss_known.is_set():
        monitor.timed_out.add(rank)
    return f"{worker_name(monitor, rank)} is lost: {when}, {seconds:.1f} s ago"


def worker_name(monitor: HeartbeatMonitor, rank: int) -> str:
    """Returns the name of a worker in messages."""
    return f"worker {rank} (host {monitor.members[rank]['host']}, pid {monitor.members[rank]['pid']})"


def _send_and_flush(monitor: HeartbeatMonitor, message: dict[str, Any]) -> None:
    sent = threading.Event()
    monitor.loop.call_soon_threadsafe(lambda: (announce(monitor, message), sent.set()))
    sent.wait(1.0)


def _claim(monitor: HeartbeatMonitor, thread: str) -> bool:
    with monitor.lock:
        monitor.exit_claimed_by = monitor.exit_claimed_by or thread
        return monitor.exit_claimed_by == thread


def _exit(monitor: HeartbeatMonitor, stacks: bool) -> None:
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
