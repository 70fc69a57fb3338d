"""Stop requests: signals and time limits. All workers agree on the stop at the end of an execution."""

import contextlib
import dataclasses
import functools
import math
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

# Exit code after a stop request and a save: EX_TEMPFAIL of sysexits.h, "try again later".
EXIT_STOPPED = 75
# Exit code if another worker is lost: all workers must be restarted.
EXIT_PEER_LOST = 76
# Exit code if replicas or workers differ in what must be equal; the run is not restarted automatically.
EXIT_MISMATCH = 77

# `StopRequest.reason` if it was not a signal.
TIME_LIMIT = "the time limit"
# Seconds that a run needs after its last save, for TensorFlow's shutdown and the requeue of the job.
_LEAVE_SECONDS = 5.0
# A SIGTERM within this many seconds of the first signal is the same request: Slurm and shells may send it twice.
_SAME_REQUEST_SECONDS = 5.0
# A process that ends at once waits this many seconds for its standard output.
_FLUSH_SECONDS = 1.0

T = TypeVar("T")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopError(Exception):
    """A stop request before the end of the rendezvous, or while one worker waits alone."""


@dataclasses.dataclass(slots=True, kw_only=True)
class StopRequest:
    """The stop request of this worker, if there is one."""

    # The name of a signal, or TIME_LIMIT; None: no stop request.
    reason: str | None = None
    # When the handlers were installed, and when the time limit ends (`time.monotonic`).
    started: float = dataclasses.field(default_factory=time.monotonic)
    end: float = math.inf
    # When the batch job ends (`time.time`): the only time that depends on the host's clock.
    job_end: float = math.inf
    # Seconds of the longest execution so far, and of a save: needed to stop in time.
    execution_seconds: float = 0.0
    save_seconds: Callable[[], float] = lambda: 0.0
    # Number of SIGINTs.
    interrupts: int = 0
    # Whether the run is stopping: it saves, or has nothing left to save. Further stop signals are then ignored.
    in_progress: bool = False
    # Whether a signal ends the main thread's wait; see `unless_stopped`.
    ends_wait: bool = False

    def unless_stopped(self, wait: Callable[[], T]) -> T | None:
        """Returns `wait()`, in which this worker waits alone; None if a stop signal ends the wait, or came before."""
        self.ends_wait = True
        try:
            return None if self.reason is not None else wait()
        except StopError:
            return None
        finally:
            self.ends_wait = False

    def poll(self) -> bool:
        """Returns True after a stop signal, or if the time left may be too short for another execution.

        In the second case, sets `reason` to TIME_LIMIT.
        """
        if self.reason is None:
            # This execution, and the next, which sends the request to all workers. The save may be slower than before.
            needed = _LEAVE_SECONDS + 2 * self.execution_seconds + 2 * self.save_seconds()
            if min(self.end - time.monotonic(), self.job_end - time.time()) < needed:
                self.reason = TIME_LIMIT
        return self.reason is not None


def within(seconds: float, function: Callable[[], T]) -> T | None:
    """Returns `function()`; None if it takes longer, for example in a hanging file system.

    Also returns None if the function raises an error, which Python prints, or if no thread can start.
    """
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    with contextlib.suppress(RuntimeError):
        thread.start()
        thread.join(seconds)
    return found[0] if found else None


def end_process(code: int) -> NoReturn:
    """Flushes standard output and ends the process, without Python's shutdown. Any thread may call it."""

    def flush() -> None:
        with contextlib.suppress(OSError, ValueError):  # The stream is closed.
            sys.stdout.flush()

    within(_FLUSH_SECONDS, flush)  # The reader of a pipe may be suspended.
    os._exit(code)


# The stop request of a tfdist command, made when it starts; None in a user's own process: each run makes one.
_of_process: StopRequest | None = None
# What the last `install_handlers` returned.
_latest: StopRequest | None = None
_recorded = _SIGNALS  # The signals that `install_handlers` records.


def install_early_handlers(saves: bool = True) -> None:
    """Installs the handlers early; in a process that never `saves`, SIGTERM and SIGINT keep their defaults."""
    global _of_process, _recorded
    _recorded = _SIGNALS if saves else (signal.SIGUSR1,)
    _of_process = install_handlers()


def install_handlers() -> StopRequest:
    """Installs handlers that record stop signals; a second SIGINT raises KeyboardInterrupt unless a run is stopping."""
    global _latest
    _latest = _of_process or StopRequest()
    for number in _recorded:
        signal.signal(number, functools.partial(_record, _latest))
    return _latest


def _record(request: StopRequest, number: int, frame: types.FrameType | None) -> None:
    request.interrupts += number == signal.SIGINT
    if number == signal.SIGINT and request.interrupts > 1 and not request.in_progress:
        raise KeyboardInterrupt
    request.reason = request.reason or signal.Signals(number).name
    if request.ends_wait:
        raise StopError(f"stopped by {request.reason}")


def _restore_in_child() -> None:
    """Removes our handlers from a forked process: a process pool ends its processes by SIGTERM."""
    if any(getattr(signal.getsignal(number), "func", None) is _record for number in _SIGNALS):
        restore_handlers()


os.register_at_fork(after_in_child=_restore_in_child)


def restore_handlers() -> None:
    """Restores Python's default handlers: signals end the process."""
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def end_at_second_signal(end: Callable[[int], None]) -> None:
    """Calls `end`, in a thread, with the number of a second SIGINT or SIGTERM, unless the run is already stopping.

    A thread is needed because Python runs no signal handler during a call that does not return, such as a hanging read.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # Ctrl-C also reaches the children.

    def watch() -> None:
        first = None
        while sender:  # Kept open by this thread.
            (number,) = receiver.recv(1)
            now = time.monotonic()
            if first is None and number in (signal.SIGINT, signal.SIGTERM):
                first = now
                continue
            again = number == signal.SIGINT or (number == signal.SIGTERM and now - first > _SAME_REQUEST_SECONDS)
            if again and not is_stopping():
                end(number)

    with block_signals():  # The thread must not receive them in place of the main thread.
        threading.Thread(target=watch, name="signals", daemon=True).start()


def is_stopping() -> bool:
    """Returns whether a run of this process is stopping after a stop request."""
    return _latest is not None and _latest.in_progress


@contextlib.contextmanager
def handle_signals(saves: bool) -> Iterator[StopRequest]:
    """If the run in the block `saves`, lets signals stop it; otherwise the handlers stay as they are."""
    if not saves:
        yield StopRequest()
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield install_handlers()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Holds signals back during a block that would lose them, such as TensorFlow's start.

    TensorFlow replaces our handlers, and delays Python's while it waits for other workers. Threads that are started in
    the block never receive signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        for number in _SIGNALS:
            handler = signal.getsignal(number)  # Python's handler; TensorFlow's is not known to Python.
            if handler is not None:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Ignores stop signals from now on: the run is done, and Python's shutdown would restore the default handlers."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
