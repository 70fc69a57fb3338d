"""Worker processes on this machine: started so that none outlives its launcher, heard line by line. No TensorFlow.

One thread does it all: the kernel ends a worker when the thread that started it ends (PR_SET_PDEATHSIG), and a fork in
a process of several threads may hang.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import pty
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
# How often workers are looked at, in seconds, should a signal of their end be missed.
_LOOK_SECONDS = 0.5
# How long output is awaited after the last worker has ended, should something else hold its end of the pipe.
_DRAIN_SECONDS = 1.0
_AGAIN_SECONDS = 0.5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_CLEAR_LINE = b"\r\x1b[K"


@dataclasses.dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """What a launcher sees and says; made by `open_watch`."""

    selector: selectors.BaseSelector
    # Whether standard output is a terminal: rank 0 then draws its bar there.
    terminal: bool
    workers: list[subprocess.Popen] = dataclasses.field(default_factory=list)
    # The signals that the launcher was sent and has passed on, in order; and those that wait for it.
    asked: list[int] = dataclasses.field(default_factory=list)
    arrived: list[int] = dataclasses.field(default_factory=list)
    # What each source of output has written since its last end of line; rank 0's line as it stands on the terminal.
    rests: dict[int, bytes] = dataclasses.field(default_factory=dict)
    bar: bytes = b""

    def start(self, command: Sequence[str], env: Mapping[str, str], rank: int) -> subprocess.Popen:
        """Starts a worker; rank 0 begins a new set of them. A worker never outlives the launcher."""
        if rank == 0:
            self.workers = []
        drawing = self.terminal and rank == 0
        ours, theirs = _open_terminal() if drawing else os.pipe()
        error_ours, error_theirs = os.pipe()
        worker = subprocess.Popen(
            command,
            # What a worker prints shall not be lost with it.
            env={"PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=error_theirs,
            # The terminal's Ctrl-C comes to the launcher alone, which passes it on once.
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
        os.close(theirs)
        os.close(error_theirs)
        self.selector.register(ours, selectors.EVENT_READ, (rank, 1, drawing))
        self.selector.register(error_ours, selectors.EVENT_READ, (rank, 2, False))
        self.workers.append(worker)
        return worker

    def wait(self, seconds: float = _LOOK_SECONDS) -> list[int]:
        """Passes output on until something else happens; returns the stop signals that have come."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(4096)
            else:
                self._read(key.fd, *key.data)
        arrived, self.arrived = self.arrived, []
        self.asked += arrived
        return arrived

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yields (rank, exit code) of workers that have ended since it was asked last; negative: by a signal."""
        for rank, worker in enumerate(self.workers):
            if worker.returncode is None and worker.poll() is not None:
                yield rank, worker.returncode

    def all_stopped(self) -> bool:
        """Whether each worker that lives is stopped (SIGSTOP), and cannot answer a signal."""
        living = [worker for worker in self.workers if worker.returncode is None]
        return bool(living) and all(_state(worker.pid) == "T" for worker in living)

    def send(self, number: int) -> None:
        """Sends a signal to each worker that lives; SIGKILL to all that they have started, too."""
        for worker in self.workers:
            if worker.returncode is None:  # Not yet waited for: its id is still its own.
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(worker.pid, number)

    def drain(self) -> None:
        """Passes on what the workers, which have ended, have left in their pipes."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._sources() and time.monotonic() < deadline:
            self.wait(0.05)
        for key in self._sources():
            self._close(key.fd, *key.data)

    def say(self, text: str) -> None:
        """Says a line of the launcher's own on standard error."""
        self._write(2, f"tfdist.launch: {text}\n".encode())

    def _sources(self) -> list[selectors.SelectorKey]:
        return [key for key in self.selector.get_map().values() if key.data is not None]

    def _read(self, source: int, rank: int, target: int, drawing: bool) -> None:
        try:
            data = os.read(source, 65536)
        except OSError:  # So a terminal says that nobody is left at its other end.
            data = b""
        if not data:
            self._close(source, rank, target, drawing)
            return
        *lines, rest = (self.rests.pop(source, b"") + data).split(b"\n")
        text = b"".join(_line(rank, line) for line in lines)
        drawn = rest.rstrip(b"\r")
        last = drawn.rpartition(b"\r")[2]
        self.rests[source] = last + rest[len(drawn) :]
        bar = self.bar
        if drawing:
            bar = b"[%d] %b" % (rank, last) if last else b"" if lines else bar
        if text:
            self._write(target, text, bar)
        elif bar != self.bar:
            self.bar = bar
            _write(1, b"\r" + bar)

    def _close(self, source: int, rank: int, target: int, drawing: bool) -> None:
        self.selector.unregister(source)
        os.close(source)
        rest = self.rests.pop(source, b"")
        if rest:
            self._write(target, _line(rank, rest), b"" if drawing else self.bar)

    def _write(self, target: int, text: bytes, bar: bytes | None = None) -> None:
        """Writes whole lines, above rank 0's bar where there is one."""
        if self.bar:
            _write(1, _CLEAR_LINE)
        _write(target, text)
        self.bar = self.bar if bar is None else bar
        if self.bar:
            _write(1, b"\r" + self.bar)


@contextlib.contextmanager
def open_group() -> Iterator[ProcessGroup]:
    """Begins to listen to signals; at the end of the `with` block no worker is left."""
    selector = selectors.DefaultSelector()
    ear, mouth = socket.socketpair()
    ear.setblocking(False)
    mouth.setblocking(False)
    selector.register(ear, selectors.EVENT_READ)
    watch = ProcessGroup(selector=selector, terminal=sys.stdout.isatty())
    signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda number, frame: watch.arrived.append(number))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup leaves it. Else the terminal has gone: save.
        signal.signal(signal.SIGHUP, lambda number, frame: watch.arrived.append(signal.SIGTERM))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # To wake `Watch.wait` up.
    try:
        yield watch
    finally:
        watch.send(signal.SIGKILL)
        for worker in watch.workers:
            worker.wait()


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _state(pid: int) -> str:
    """What the kernel says of a process in one letter; "" where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _line(rank: int, line: bytes) -> bytes:
    # Of a line that was drawn over, the last state.
    return b"[%d] %b\n" % (rank, line.rstrip(b"\r").rpartition(b"\r")[2])


@contextlib.contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """Within, SIGTERM and a lost terminal end this process as an exception does: what is to be tidied up is."""

    def leave(number: int, frame: Any) -> None:
        del number, frame
        if not isinstance(sys.exc_info()[1], SystemExit):  # Else it is on its way.
            # Python loses what is raised while it forks: then once more.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            raise SystemExit(128 + signal.SIGTERM)

    numbers = [signal.SIGTERM, signal.SIGALRM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As nohup leaves it.
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent(launcher: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """What a worker does before it becomes one: it asks to be sent a signal when `launcher`, its parent, ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != launcher:  # It has ended before it could be asked.
            os._exit(1)

    return bind


def _open_terminal() -> tuple[int, int]:
    """Opens a terminal of our own: (its reading end, its writing end); as wide as the real one, less the rank."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(1)
        packed = struct.pack("HHHH", size.lines, max(20, size.columns - len("[0] ")), 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, packed)
    return ours, theirs


def _write(target: int, data: bytes) -> None:
    # A log file on a full disk, or a reader that went away, does not end the training.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
