"""Worker processes of this machine: start, signals, output with a rank before each line. Imports no TensorFlow.

Single-threaded: the kernel kills a worker when the thread that started it ends (PR_SET_PDEATHSIG), and a fork in a
process with several threads may deadlock.
"""

import contextlib
import ctypes
import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfdist.config import tensorflow_log

_PR_SET_PDEATHSIG = 1
# Seconds between two polls of the workers, in case a SIGCHLD was missed.
_POLL_SECONDS = 0.5
# Seconds to wait for output after the last worker has exited: another process may still hold its end of the pipe.
_DRAIN_SECONDS = 1.0
# Set for each worker, unless the user sets it: without buffering no output is lost when a worker is killed.
_DEFAULTS = {"PYTHONUNBUFFERED": "1"}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclasses.dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """The workers of one attempt, and the signals that the supervisor received; created by `open_group`."""

    selector: selectors.BaseSelector
    workers: list[subprocess.Popen] = dataclasses.field(default_factory=list)
    # Stop signals that the supervisor received, in order: returned by `wait`, and not yet returned.
    forwarded: list[int] = dataclasses.field(default_factory=list)
    pending: list[int] = dataclasses.field(default_factory=list)
    # File descriptor of a pipe -> its output since the last newline.
    partial_lines: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def start(self, command: Sequence[str], env: Mapping[str, str], rank: int) -> subprocess.Popen:
        """Starts a worker, which the kernel kills if the supervisor dies; rank 0 starts a new list of workers."""
        if rank == 0:
            self.workers = []
        variables = _DEFAULTS | dict(env)
        tensorflow_log.hide(variables)  # For scripts that import TensorFlow before tfdist.
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        worker = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=errors_end,
            # Ctrl-C in the terminal reaches the supervisor only, which forwards it once.
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
        os.close(output_end)
        os.close(errors_end)
        self.selector.register(output, selectors.EVENT_READ, (rank, 1))
        self.selector.register(errors, selectors.EVENT_READ, (rank, 2))
        self.workers.append(worker)
        return worker

    def wait(self, seconds: float = _POLL_SECONDS) -> list[int]:
        """Waits up to `seconds` for output, which it copies, or a signal; returns the stop signals received."""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(4096)
            else:
                self._copy_output(key.fd, *key.data)
        received, self.pending = self.pending, []
        self.forwarded += received
        return received

    def pop_exited(self) -> Iterator[tuple[int, int]]:
        """Yields (rank, exit code) of workers that exited since the last call; negative: killed by a signal."""
        for rank, worker in enumerate(self.workers):
            if worker.returncode is None and worker.poll() is not None:
                yield rank, worker.returncode

    def send(self, number: int) -> None:
        """Sends a signal to each running worker; SIGKILL to the processes that it has started, too."""
        for worker in self.workers:
            if worker.returncode is None:  # Not reaped yet, so the process id is not reused.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, number) if number == signal.SIGKILL else os.kill(worker.pid, number)

    def drain(self) -> None:
        """Copies the remaining output of workers that have exited."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._pipes() and time.monotonic() < deadline:
            self.wait(0.05)
        for key in self._pipes():
            self._close(key.fd, *key.data)

    def log(self, text: str) -> None:
        """Writes a line of the supervisor to standard error."""
        _write(2, f"tfdist.launch: {text}\n".encode())

    def _pipes(self) -> list[selectors.SelectorKey]:
        return [key for key in self.selector.get_map().values() if key.data is not None]

    def _copy_output(self, pipe: int, rank: int, target: int) -> None:
        data = os.read(pipe, 65536)
        if not data:
            self._close(pipe, rank, target)
            return
        *lines, rest = (self.partial_lines.pop(pipe, b"") + data).split(b"\n")
        # Only the last state of a line that is overwritten with carriage returns is kept.
        self.partial_lines[pipe] = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        if lines:
            _write(target, b"".join(_add_rank(rank, line) for line in lines))

    def _close(self, pipe: int, rank: int, target: int) -> None:
        self.selector.unregister(pipe)
        os.close(pipe)
        rest = self.partial_lines.pop(pipe, b"")
        if rest:
            _write(target, _add_rank(rank, rest))


@contextlib.contextmanager
def open_group() -> Iterator[ProcessGroup]:
    """Installs signal handlers and yields a group; on exit from the `with` block all its workers are killed."""
    selector = selectors.DefaultSelector()
    read_end, write_end = socket.socketpair()
    read_end.setblocking(False)
    write_end.setblocking(False)
    selector.register(read_end, selectors.EVENT_READ)
    group = ProcessGroup(selector=selector)
    signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # Wakes `ProcessGroup.wait` up.
    with handle(STOP_SIGNALS, lambda number: group.pending.append(number)):
        try:
            yield group
        finally:
            group.send(signal.SIGKILL)
            for worker in group.workers:
                worker.wait()


def _add_rank(rank: int, line: bytes) -> bytes:
    return b"[%d] %b\n" % (rank, line.rstrip(b"\r").rpartition(b"\r")[2])


@contextlib.contextmanager
def handle(numbers: Sequence[int], handler: Callable[[int], None]) -> Iterator[None]:
    """In the block, `handler` is called with these signals, and with SIGTERM if the terminal was closed."""
    closed = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []  # nohup ignores it.

    def receive(number: int, frame: Any) -> None:
        handler(signal.SIGTERM if number == signal.SIGHUP else number)

    before = {number: signal.signal(number, receive) for number in (*numbers, *closed)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def cleanup_on_sigterm() -> Iterator[None]:
    """In the block, SIGTERM and a closed terminal raise SystemExit, so that `finally` clauses run."""

    def exit_now(number: int) -> None:
        if not isinstance(sys.exc_info()[1], SystemExit):  # Otherwise it has been raised already.
            raise SystemExit(128 + signal.SIGTERM)

    with handle([signal.SIGTERM], exit_now):
        yield


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Returns a `preexec_fn`: the kernel sends signal `number` to the child when the process `parent` ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # The parent ended before the call.
            os._exit(1)

    return set_death_signal


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # A full disk or a closed pipe must not end the training.
        while data:
            os.set_blocking(target, True)  # Another program on this terminal or pipe may have changed it.
            data = data[os.write(target, data) :]
