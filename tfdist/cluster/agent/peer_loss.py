"""What a worker says to its agent while a run lasts, and the end of its process after a loss. Imports no TensorFlow.

A thread sends the last completed step to the agent every second, and learns from it of lost workers (peers.py). It also
notices when this worker itself waits too long for a step. After a loss the main thread has a few seconds to exit by
itself: TensorFlow usually fails, and process_exit.py reads the cause from `lost_peer`. If it hangs in a collective
instead, the thread ends the process. With one worker there is no agent, and the thread only watches for stalls.
"""

import atexit
import contextlib
import dataclasses
import faulthandler
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.agent import peers
from tfdist.cluster.agent.client import Agent

# Seconds in which the main thread may exit by itself after a loss.
_GRACE_SECONDS = 2.0
# Seconds that other non-daemon threads may take to finish, such as the writer of a checkpoint.
_WRITING_SECONDS = 60.0
# Seconds that the agent of rank 0 may take until the others have read its last message.
_LEAVING_SECONDS = 120.0


class ChiefFailedError(RuntimeError):
    """The chief failed in a block that the other workers wait for; the chief shows the error itself."""


@dataclasses.dataclass(slots=True, kw_only=True)
class OwnProgress:
    """What this worker does, as its main thread notes it."""

    # The last completed step, and when the last execution ended; None: no execution is under way.
    step: int = 0
    last_execution: float | None = None
    # True as soon as an execution has ended.
    started: bool = False
    # The call in which this worker waits for all others, in words, and since when; None: it is in no such call.
    collective: tuple[str, float] | None = None
    # Blocks of `paused` that this worker is in; the last moment at which any worker was in one.
    pauses: int = 0
    last_pause: float = 0.0


@dataclasses.dataclass(slots=True, kw_only=True)
class HeartbeatMonitor:
    """The heartbeats of this worker, and what it knows of the others; created by `start`."""

    rank: int
    # One dict per worker in rank order, as returned by `client.meet`.
    members: Sequence[Mapping[str, Any]]
    options: config_lib.ClusterOptions
    # None if there is only one worker.
    agent: Agent | None = None
    own: OwnProgress = dataclasses.field(default_factory=OwnProgress)
    # Whether another worker is in a block of `paused`.
    others_paused: bool = False
    # Seconds that a checkpoint may take to be written after a loss, if more than `_WRITING_SECONDS`.
    writing_seconds: Callable[[], float] = lambda: 0.0
    # After `all_finished`, missing heartbeats are ignored.
    finished: bool = False
    all_finished: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Once `loss_known` is set: the lost worker in words ("lost"), "stacks" and "restart_helps"; see `declare_lost`.
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss_known: threading.Event = dataclasses.field(default_factory=threading.Event)
    # Ranks whose loss this worker's agent detected itself.
    timed_out: set[int] = dataclasses.field(default_factory=set)
    # The agent has sent the last message of this worker.
    sent: threading.Event = dataclasses.field(default_factory=threading.Event)
    # The thread that ends this process: the first that claims it.
    exit_claimed_by: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def heartbeat(self, step: int) -> None:
        """Notes that an execution has ended after `step` completed steps."""
        self.own.step, self.own.last_execution, self.own.started = step, time.monotonic(), True

    def pause(self) -> None:
        """Stops the stall timer until the next heartbeat."""
        self.own.last_execution = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the stall timers of all workers in a block that may take any time, such as a callback or a save."""
        self.own.pauses += 1
        try:
            yield
        finally:
            self.own.last_pause = time.monotonic()
            self.own.pauses -= 1

    @contextlib.contextmanager
    def in_collective(self, purpose: str) -> Iterator[None]:
        """Notes that this worker waits for all others in a block."""
        outer, self.own.collective = self.own.collective, self.own.collective or (purpose, time.monotonic())
        try:
            yield
        finally:
            self.own.collective = outer

    def finish(self, seconds: float) -> None:
        """Waits until all workers have finished; after that, missing heartbeats are ignored.

        Raises:
            TimeoutError: some workers did not finish within `seconds`, not counting blocks of `paused`.
        """
        self.own.last_execution = None  # Waiting for the chief, which may still write files, is not a stall.
        if self.agent is None:
            return
        self.finished = True
        self.agent.send(finished=True)
        started = time.monotonic()
        while not self.all_finished.wait(0.2):  # Wakes up, so that Python's signal handlers run.
            if time.monotonic() > max(started, self.own.last_pause) + seconds:
                raise TimeoutError(f"Some workers did not finish within {seconds:g} s after this one.")


# The monitor of this process; a process has at most one cluster.
_monitor: HeartbeatMonitor | None = None


def start(
    *, rank: int, members: Sequence[Mapping[str, Any]], options: config_lib.ClusterOptions, agent: Agent | None
) -> HeartbeatMonitor:
    """Starts the monitor in a thread; every worker calls it once per process, after `Agent.start_limit`.

    `members` and `agent`: as returned by `client.meet`.
    """
    global _monitor
    _monitor = monitor = HeartbeatMonitor(rank=rank, members=members, options=options, agent=agent)
    threading.Thread(target=_work, args=(monitor,), name="heartbeat", daemon=True).start()
    atexit.register(announce_exit, monitor)
    return monitor


def _work(monitor: HeartbeatMonitor) -> None:
    """Sends heartbeats to the agent and receives its messages, until the next monitor of this process."""
    limit = monitor.options.heartbeat_seconds
    pause = peers.interval(len(monitor.members), limit)
    last = sent = time.monotonic() - pause
    while monitor is _monitor:
        _receive(monitor, min(1.0, pause))
        now, own = time.monotonic(), monitor.own
        if now - last > limit / 2 and own.last_execution is not None:
            own.last_execution += now - last  # This process was suspended.
        last = now
        if own.pauses or monitor.others_paused:
            own.last_pause = now
        if monitor.agent is not None and now - sent > pause - 0.1:
            sent = now
            monitor.agent.send(**status(monitor))
        if not monitor.loss and not monitor.all_finished.is_set() and (text := stalled(monitor, now)):
            declare_lost(monitor, text, stacks=True)


def _receive(monitor: HeartbeatMonitor, seconds: float) -> None:
    """Handles the messages of the agent for so many seconds, or one of them."""
    if monitor.agent is None:
        time.sleep(seconds)
        return
    try:
        message = monitor.agent.receive(seconds) or {}
    except EOFError:
        if monitor.exit_claimed_by:
            time.sleep(seconds)
            return
        monitor.agent.replace(started=True, finished=[monitor.rank] if monitor.finished else [])
        monitor.agent.send(started=True, heartbeat_seconds=monitor.options.heartbeat_seconds)
        return
    monitor.others_paused = message.get("paused", monitor.others_paused)
    if "all_finished" in message:
        monitor.all_finished.set()  # From now on the process may exit.
    elif "sent" in message:
        monitor.sent.set()
    elif "loss" in message:
        monitor.timed_out = set(message["timed_out"])
        _note_loss(monitor, message["loss"])


def status(monitor: HeartbeatMonitor) -> dict[str, Any]:
    """Returns the heartbeat of this worker."""
    own, now = monitor.own, time.monotonic()
    waits = None if own.collective is None else [own.collective[0], now - own.collective[1]]
    executing = None if own.last_execution is None else now - own.last_execution
    return {"step": own.step, "waits": waits, "paused": own.pauses > 0, "executing": executing}


def stalled(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if this worker has not completed an execution in time; "" otherwise.

    The timer starts with the end of the previous execution; before the first one, with the first call that waits for
    all workers. Time in which any worker is in a block of `paused` does not count. If there is only one worker, its
    time outside of these calls does not count either: nobody waits for it, and it may be in a notebook or a debugger.
    """
    options, name = monitor.options, peers.worker_name(monitor.members, monitor.rank)
    collective, last = monitor.own.collective, monitor.own.last_execution
    if last is not None and len(monitor.members) == 1:
        last = None if collective is None else max(last, collective[1])
    if last is not None and options.stall_seconds:
        seconds = now - max(last, monitor.own.last_pause)
        if seconds > options.stall_seconds:
            return f"{name} has not completed a step for {seconds:.1f} s (last step: {monitor.own.step})"
    elif collective is not None and not monitor.own.started and options.first_stall_seconds:
        seconds = now - max(collective[1], monitor.own.last_pause)
        if seconds > options.first_stall_seconds:
            whom = "for all workers " if len(monitor.members) > 1 else ""
            return (
                f"{name} has waited {whom}for {seconds:.1f} s, in {collective[0]}, and no execution has "
                "ended yet (config.cluster.first_stall_seconds)"
            )
    return ""


def declare_lost(monitor: HeartbeatMonitor, text: str, *, stacks: bool = False, restart_helps: bool = True) -> None:
    """Announces a lost worker, and ends this process if it does not exit by itself soon.

    Args:
        monitor: the monitor.
        text: the lost worker and the reason, in words.
        stacks: write the stack traces of all threads to standard error.
        restart_helps: True if a worker was lost; False if it reported an error, which a restart would repeat.
    """
    how = {"stacks": stacks, "restart_helps": restart_helps}
    if monitor.agent is None:
        _note_loss(monitor, {"lost": text} | how)
    else:
        monitor.agent.send(lost={"text": text} | how)


def _note_loss(monitor: HeartbeatMonitor, loss: dict[str, Any]) -> None:
    if not monitor.loss_known.is_set():
        monitor.loss = loss
        monitor.loss_known.set()
        threading.Thread(target=_exit, args=(monitor, loss["stacks"]), daemon=True).start()


def lost_peer(seconds: float) -> str:
    """Returns the lost worker, in words, as soon as it is known, at most after `seconds`; "" if no worker is lost.

    The calling thread must then end this process.
    """
    if _monitor is None or _monitor.agent is None:
        return ""
    _monitor.loss_known.wait(seconds)
    claim_exit()
    return cause(_monitor)


def named_workers(error: str) -> list[str]:
    """Returns the other workers that a message of TensorFlow names as `/job:worker/replica:0/task:1`."""
    if _monitor is None:
        return []
    ranks = {int(rank) for rank in re.findall(r"/job:worker/(?:replica:\d+/)?task:(\d{1,9})\b", error)}
    others = sorted(ranks - {_monitor.rank})
    return [peers.worker_name(_monitor.members, rank) for rank in others if rank < len(_monitor.members)]


def claim_exit() -> None:
    """Makes the calling thread the one that ends this process, for a reason of its own."""
    if _monitor is not None and not _claim(_monitor, "main"):
        time.sleep(max(_WRITING_SECONDS, _monitor.writing_seconds()))  # Too late: another thread is ending the process.


def _claim(monitor: HeartbeatMonitor, thread: str) -> bool:
    with monitor.lock:
        monitor.exit_claimed_by = monitor.exit_claimed_by or thread
        return monitor.exit_claimed_by == thread


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
        text = f"{peers.worker_name(monitor.members, monitor.rank)} has ended: {reason.rstrip('.')}"
        _send_last(monitor, lost={"text": text, "restart_helps": False, "tell": False})


def announce_exit(monitor: HeartbeatMonitor) -> None:
    """Announces a normal exit, so that this worker is not reported as lost."""
    if not monitor.all_finished.is_set():
        _send_last(monitor, finished=True)


def _send_last(monitor: HeartbeatMonitor, seconds: float = 1.0, **message: Any) -> None:
    if monitor.agent is not None:
        monitor.sent.clear()
        monitor.agent.send(**message)
        monitor.sent.wait(seconds)


def requeue(missing: Collection[int] = ()) -> None:
    """Requeues the Slurm job if this process ends because a worker was lost, and if it is the one to do so.

    `missing`: the ranks of workers that did not connect, if this process ends before there is a monitor.
    """
    if _monitor is None:
        slurm_requeue.requeue(missing)
    elif _monitor.loss.get("restart_helps"):
        slurm_requeue.requeue(_monitor.timed_out)


def cause(monitor: HeartbeatMonitor) -> str:
    """Returns the lost worker, in words, and what to do; "" if no worker is lost."""
    advice = "Restart all workers" if len(monitor.members) > 1 else "Run the same command to resume"
    return f"{monitor.loss['lost']}. {advice}" if monitor.loss else ""


def await_writers() -> None:
    """Waits for the threads that may be writing a checkpoint, each for a limited time."""
    deadline = time.monotonic() + max(_WRITING_SECONDS, _monitor.writing_seconds() if _monitor else 0.0)
    time.sleep(_GRACE_SECONDS)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def _exit(monitor: HeartbeatMonitor, stacks: bool) -> None:
    if stacks:
        faulthandler.dump_traceback(all_threads=True)
    await_writers()
    if monitor.rank == 0:
        # A worker that has not read the message would lose it with the connection, and name the chief.
        _send_last(monitor, _LEAVING_SECONDS, leaving=True)
    if _claim(monitor, "heartbeat"):
        worker = f"worker {monitor.rank}: " if len(monitor.members) > 1 else ""
        print(f"tfdist: {worker}{cause(monitor)}", file=sys.stderr, flush=True)
        requeue()
        os._exit(interruption.EXIT_PEER_LOST)
