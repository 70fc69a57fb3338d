"""Keeps TensorFlow's own log lines out of a run's output, unless TF_CPP_MIN_LOG_LEVEL is set to another value than 3.

TensorFlow writes some lines at every import, whatever its settings are. Imports no TensorFlow by itself.
"""

import contextlib
import functools
import os
import signal
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, MutableMapping

from tfdist.config import patching

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# The level that hides all lines except those of a crash; with another one, nothing is hidden here.
HIDDEN = "3"


def hide(environment: MutableMapping[str, str]) -> bool:
    """Sets the level in `environment` unless it is set; returns whether lines are hidden."""
    return environment.setdefault(LEVEL, HIDDEN) == HIDDEN


@contextlib.contextmanager
def hide_stderr() -> Iterator[None]:
    """In the block, what the process writes to standard error is kept, and shown only if the block raises.

    It is also shown if the process dies in the block, as by an illegal instruction or the abort of a library of CUDA.
    """
    if sys.stderr is None:  # It was closed when the process started.
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept, _show_at_death(kept.fileno(), stderr):
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            _copy(kept.fileno(), stderr)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def _show_at_death(kept: int, stderr: int) -> Iterator[None]:
    """Lets a child process copy the file `kept` to `stderr` if this process dies in the block."""
    receiver, sender = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, sender)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The child of a process with threads may call the kernel, and does.
                child = os.fork()
        except OSError:
            os.close(receiver)
            child = None
        if child == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            os.close(sender)
            if not os.read(receiver, 1):
                _copy(kept, stderr)
            os._exit(0)
        if child is not None:
            os.close(receiver)
            stack.callback(_wait, child)
            stack.callback(os.write, sender, b".")
        yield


def _wait(child: int) -> None:
    with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored, as a parent process may leave it.
        os.waitpid(child, 0)


def _copy(kept: int, stderr: int) -> None:
    os.lseek(kept, 0, os.SEEK_SET)
    while part := os.read(kept, 65536):
        os.write(stderr, part)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """As `hide_stderr`, unless TF_CPP_MIN_LOG_LEVEL is set to another value than 3."""
    with hide_stderr() if hide(os.environ) else contextlib.nullcontext():
        yield


@functools.cache
def announce() -> None:
    """Says once, on a terminal, that TensorFlow starts, which takes some seconds without any other line."""
    if sys.stderr is not None and sys.stderr.isatty():
        print("tfdist: TensorFlow is starting, which takes some seconds", file=sys.stderr, flush=True)


def hide_at_import(settings: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Hides the lines of the first `import tensorflow` that follows in this process, which runs within `settings`."""

    def quietly(execute: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
        with settings(), quiet():
            execute(module)

    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, patching.ImportHook({"tensorflow"}, quietly))
