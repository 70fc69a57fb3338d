"""Signals and time limits that ask a run to stop: noted here, agreed on by all workers at the end of a call."""

import contextlib
import dataclasses
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator

# What a run that was asked to stop exits with after saving: sysexits.h's EX_TEMPFAIL, "try again later".
EXIT_STOPPED = 75
# What a worker exits with when another worker was lost under it: all workers have to be started again.
EXIT_PEER_LOST = 76

# What `StopRequest.reason` says where no signal was the reason.
TIME_LIMIT = "the time limit"
# Seconds before the end of its time by which a run must be out: TensorFlow's own end, and the requeueing of the job.
_LEAVE_SECONDS = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopError(Exception):
    """The workers were asked to stop before they had met; there is nothing to save."""


@dataclasses.dataclass(slots=True, kw_only=True)
class StopRequest:
    """Whether this worker was asked to stop, and by what."""

    # The name of a signal or TIME_LIMIT; None: it was not.
    reason: str | None = None
    # When the process began to listen, and when its time ends (None: never): seconds as `time.time` counts.
    started: float = dataclasses.field(default_factory=time.time)
    end: float | None = None
    # What it takes to stop: seconds of the longest call so far, and those that a save may take.
    call_seconds: float = 0.0
    save_seconds: Callable[[], float] = lambda: 0.0
    # How often Ctrl-C was pressed; and whether the workers have agreed to stop, so that it has nothing to hasten.
    interrupts: int = 0
    saving: bool = False

    def asked(self) -> bool:
        """Whether to stop now: a signal has come, or there may be no time for another call."""
        if self.reason is None and self.end is not None:
            # A call that begins now and the one that carries the wish to stop; a save may be slower than any before.
            needed = _LEAVE_SECONDS + 2 * self.call_seconds + 2 * self.save_seconds()
            if time.time() + needed > self.end:
                self.reason = TIME_LIMIT
        return self.reason is not None


# What a process has been sent before anyone asked for it.
_early: StopRequest | None = None


def install_early_handlers() -> None:
    """Begins to remember signals for the first `listen` of this process."""
    global _early
    _early = install_handlers()


def install_handlers() -> StopRequest:
    """Begins to remember SIGTERM, SIGINT and SIGUSR1 instead of dying of them; a second SIGINT ends the process."""
    global _early
    request, _early = _early or StopRequest(), None

    def remember(number: int, frame: types.FrameType | None) -> None:
        del frame
        request.interrupts += number == signal.SIGINT
        if number == signal.SIGINT and request.interrupts > 1 and not request.saving:
            raise KeyboardInterrupt
        request.reason = request.reason or signal.Signals(number).name

    for number in _SIGNALS:
        signal.signal(number, remember)
    return request


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Keeps signals waiting during a block that would lose them, such as TensorFlow's start.

    That puts a handler of its own in the place of ours, and holds up Python's for as long as it waits for the others.
    Threads that the block starts never take a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        for number in _SIGNALS:
            handler = signal.getsignal(number)  # What Python knows of: TensorFlow's is not.
            if handler is not None:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """From now on no signal changes how this process ends: all is done, and Python's own end would restore defaults."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
