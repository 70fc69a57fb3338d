"""Starts Python processes that need TensorFlow without importing it again: they are forked from a process that has.

`Popen` and `run` stand in for those of `subprocess`. A command that is `[sys.executable, "-m", module, ...]`,
`[sys.executable, "-c", code, ...]` or `[sys.executable, "script.py", ...]` is run by a server: a process of this file
that has imported TensorFlow, Keras and tfdist, has executed no operation and listed no device, and has no thread but
OpenBLAS' own, which that library ends before a fork. The server forks a child, which is given the command's arguments,
environment, directory and files, runs the command as `__main__`, and ends as an interpreter ends: `atexit`, threads,
C++'s destructors. All other commands, and those that set a variable that is read while TensorFlow is imported, are
started by `subprocess` itself.

All processes of one run of the tests share two servers. The first that needs a server starts it; it ends when the
process of the tests calls `end_servers`, or itself ends.

When a child ends, the modules that the server has imported are not torn down, which would take 0.12 s of processor
time; tfdist, TensorFlow's runtime and what the child itself has imported are.

Differences from a separate process: the strings of all children of a server have the same hashes (so `Popen` takes
turns between two servers: workers that must agree do not share them), `/proc/PID/cmdline` and `environ` are the
server's, `mallopt` comes after the import, and TensorFlow's graph optimizers are off unless the environment has
TESTS_OPTIMIZE=1: they take a fifth of the time of short trainings. Tests of these, of the cost of a start, of the
imports of a module, and of commands as users type them use `subprocess`.

usage: python forked.py ADDRESS PID   -> serves an abstract Unix socket until the process PID ends
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import itertools
import json
import linecache
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# What is imported before the first fork. None of it defines flags, which belong to one command.
_PRELOADED = (
    *("tfdist", "tensorflow", "keras", "h5py", "tensorboard.summary", "ml_collections"),
    *(
        "tfdist.training.loop",
        "tfdist.training.evaluation.evaluate",
        "tfdist.keras_fit.api",
        "tfdist.zoo.sources",
        "tfdist.zoo.models",
    ),
)
# Variables that are read as Python, a C library or TensorFlow starts: a command that sets them otherwise than the
# server is no fork. TF_CONFIG, CUDA_VISIBLE_DEVICES and TF_NUM_*_THREADS are read later, by the first operation.
_READ_AT_IMPORT = (
    *("PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "LD_"),
    *("MALLOC_", "GLIBC_TUNABLES", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "BLIS_", "KERAS_", "MPL"),
    *("TF_CPP_", "TF_ENABLE_", "TF_USE_", "TF_XLA_", "TF2_", "XLA_", "ABSL_", "GRPC_", "LANG", "LC_", "TZ"),
)
# Tracing creates many objects that live on: at Python's threshold of 700, collections take 5 % of a short training.
GC_THRESHOLD = (50_000, 20, 100)
# Keeps TensorFlow's graph optimizers in a child; see the fixture `graph_optimizers`.
OPTIMIZE = "TESTS_OPTIMIZE"
# TensorFlow's messages at the import, which nobody would read.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Modules that a child takes apart at its end although its server has imported them: they hold what a program makes.
_ENDED = ("__main__", "sys", "builtins", "tfdist", "tensorflow.python.eager.context", "keras.src.backend.common")
_SERVERS = 2
# The process of this run of the tests: pytest-xdist's processes inherit its number.
_OWNER = int(os.environ.setdefault("TESTS_FORKED_OWNER", str(os.getpid())))
# Hundreds of processes import tfdist and the tests: each would compile all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# As this process has started: a test may change the environment before it is the first to need a server.
_ENVIRONMENT = dict(os.environ)
_PATHS = _ENVIRONMENT.get("PYTHONPATH", "")
_LENGTH = struct.Struct("<Q")
_umask = threading.Lock()


class Request(NamedTuple):
    """The command of a child; its three files are sent with it."""

    words: list[str]
    cwd: str
    env: dict[str, str]
    umask: int
    new_session: bool


class Popen(subprocess.Popen):
    """A process as `subprocess.Popen` makes it, forked from a server where that is the same."""

    server: "_Server | None" = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest) -> None:
        """Starts the process; the files of its standard streams are open."""
        shell, (stdin, stdin_ours, stdout_ours, stdout, stderr_ours, stderr) = rest[2], rest[3:9]
        others, start_new_session = rest[10:14], rest[14]
        plain = rest[9] and not (executable or preexec_fn or pass_fds or shell) and rest[15:] in ((), (-1,))
        plain = plain and others == (None, None, None, -1) and not isinstance(args, (str, bytes))
        words = [os.fspath(word) for word in args] if plain else []
        environment = dict(os.environ if env is None else env)
        if not plain or not forkable(words, environment):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        with _umask:  # Of two threads, the second would read the 0 of the first.
            mask = os.umask(0)
            os.umask(mask)
        request = Request(
            words=words,
            cwd=os.path.abspath(cwd or "."),
            env=environment,
            umask=mask,
            new_session=start_new_session,
        )
        files = [theirs if theirs != -1 else own for own, theirs in enumerate((stdin, stdout, stderr))]
        self.server = _next_server()
        self.pid = self.server.ask(("fork", request), files)
        self._child_created = True
        self._close_pipe_fds(stdin, stdin_ours, stdout_ours, stdout, stderr_ours, stderr)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self.server is None:
            return super()._try_wait(wait_flags)
        if not _ended(self.pid, 0.0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        return self.pid, self.server.ask(("reap", self.pid))

    def _internal_poll(self, *args: Any, **keywords: Any) -> int | None:
        if self.server is None:
            return super()._internal_poll(*args, **keywords)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            except (OSError, EOFError):  # The server ends with this interpreter; its children continue.
                if not sys.is_finalizing() and self.server.open:
                    raise
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    command: Sequence[str],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **keywords: Any,
) -> subprocess.CompletedProcess:
    """As `subprocess.run`."""
    if input is not None:
        keywords["stdin"] = subprocess.PIPE
    if capture_output:
        keywords |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **keywords) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                error.stdout, error.stderr = process.communicate()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def forkable(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command is one that a server can run, with an environment that it can be given."""
    if len(words) < 2 or words[0] != sys.executable:
        return False
    if words[1].startswith("-") and (words[1] not in ("-m", "-c") or len(words) < 3):
        return False
    given, ours = ({k: v for k, v in e.items() if k.startswith(_READ_AT_IMPORT)} for e in (env, os.environ))
    return _QUIET | given == _QUIET | ours | _QUIET


class _Server:
    """A server as its clients see it: each question has a connection of its own."""

    def __init__(self, number: int) -> None:
        self.open = True
        self._address = f"tfdist-tests-{_OWNER}-{number}"
        # Each server's strings have other hashes.
        self._hashes = str(number + 1)
        self._starting = threading.Lock()

    def ask(self, question: tuple[str, Any], files: Sequence[int] = ()) -> int:
        """Starts the server where no process of this run has."""
        with self._connect() or self._start() as connection:
            _send(connection, question, files)
            answer = _receive(connection)[0]
        if not isinstance(answer, int):
            raise RuntimeError(f"the server of forked processes: {answer}")
        return answer

    def end(self) -> None:
        """Ends the server if it runs, and waits until it has."""
        self.open = False
        if connection := self._connect():
            with connection, contextlib.suppress(EOFError, ConnectionError):
                _send(connection, ("end", None))
                _receive(connection)

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + self._address)
        except ConnectionRefusedError:
            connection.close()
            return None
        return connection

    def _start(self) -> socket.socket:
        """Of several processes that start the server at once, one takes its address, and the others use it."""
        with self._starting:
            code = 0
            while not (connection := self._connect()):
                if code == 0:
                    process = subprocess.Popen(
                        [sys.executable, __file__, self._address, str(_OWNER)],
                        stdin=subprocess.DEVNULL,
                        env=_ENVIRONMENT | _QUIET | {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": self._hashes},
                    )
                elif code is not None:
                    raise RuntimeError(f"the server of forked processes ended with {code}")
                time.sleep(0.01)
                code = process.poll()
        return connection


_servers = tuple(_Server(number) for number in range(_SERVERS))


def end_servers() -> None:
    """Ends the servers that have been started, if this is the process of the tests."""
    if os.getpid() == _OWNER:
        for server in _servers:
            server.end()


_turns = itertools.count()


def _next_server() -> "_Server":
    return _servers[next(_turns) % _SERVERS]


def _ended(pid: int, seconds: float | None) -> bool:
    """Waits up to `seconds` for the end of a process that has not been waited for; returns whether it has ended."""
    file = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    finally:
        os.close(file)


def _send(connection: socket.socket, message: Any, files: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([_LENGTH.pack(len(data))], rights)
    connection.sendall(data)


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Raises EOFError where the other end is closed."""
    header, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    if not header:
        raise EOFError
    data = bytearray()
    while len(data) < _LENGTH.unpack(header)[0]:
        data += connection.recv(1 << 20)
    return json.loads(data), files


def _serve(listener: socket.socket, owner: int) -> tuple[Request, list[int]] | None:
    """Answers requests until the process with the descriptor `owner` ends; in a child, returns the child's request."""
    poll = select.poll()
    for file in (listener.fileno(), owner):
        poll.register(file, select.POLLIN)
    while owner not in dict(poll.poll()):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(EOFError, ConnectionError):  # A client may have been killed.
            (question, about), files = _receive(connection)
            if question == "end":
                os._exit(0)  # It has nothing to save, and the client waits for the end of this connection.
            elif question == "reap":
                answer = os.waitpid(about, 0)[1]
            else:
                answer = _fork()
                if answer == 0:
                    return Request(*about), files
                for file in files:
                    os.close(file)
            _send(connection, answer)
    return None


def _fork() -> int | str:
    """The child's number, 0 in the child, or why there is none."""
    try:
        return os.fork()
    except OSError as error:
        return repr(error)


# What a process of its own does at SIGINT: it ignores the signal if the tests do, as in the background of a shell.
_interrupt: Any = signal.default_int_handler


def _become(request: Request, files: list[int]) -> None:
    """Gives this child the files, environment, directory and signal handlers that the request names."""
    files = [os.dup(file) if file > 2 else file for file in files]
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1 << 16)
    signal.signal(signal.SIGINT, _interrupt)
    if request.new_session:
        os.setsid()
    os.umask(request.umask)
    hashes = os.environ["PYTHONHASHSEED"]
    os.environ.clear()
    os.environ.update({"PYTHONHASHSEED": hashes, **request.env})
    os.chdir(request.cwd)
    at_once = bool(request.env.get("PYTHONUNBUFFERED"))
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        old = getattr(sys, name)
        buffering = 0 if at_once and mode == "wb" else -1
        raw = open(number, mode, buffering, closefd=False)  # noqa: SIM115 (it is this process' own)
        lines = name == "stderr" or raw.isatty()
        errors = "backslashreplace" if name == "stderr" else old.errors
        stream = io.TextIOWrapper(raw, old.encoding, errors, line_buffering=lines, write_through=buffering == 0)
        stream.mode = mode[0]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    random.seed()
    sys.orig_argv[:] = request.words
    if OPTIMIZE not in request.env:
        disable_graph_optimizers()
    _find_modules_in(request.env.get("PYTHONPATH", ""))


def disable_graph_optimizers() -> None:
    """Turns off TensorFlow's graph optimizers in this process, which must not have executed a function yet."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _find_modules_in(paths: str) -> None:
    """Replaces the directories of the server's PYTHONPATH in `sys.path` by those of the command's."""
    ours = _PATHS and [os.path.abspath(path) for path in _PATHS.split(os.pathsep)]
    theirs = [os.path.abspath(path) for path in paths.split(os.pathsep)] if paths else []
    sys.path[1:] = [*theirs, *(path for path in sys.path[1:] if path not in ours)]


def _execute(words: list[str]) -> None:
    """Runs `python WORDS` as this process' main program."""
    main = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    kind, *rest = words
    if kind == "-m":
        import runpy

        module, *arguments = rest
        sys.argv[:] = ["-m", *arguments]
        sys.path[0] = os.getcwd()
        sys.modules.pop(module, None)
        runpy._run_module_as_main(module)
    elif kind == "-c":
        code, *arguments = rest
        sys.argv[:] = ["-c", *arguments]
        sys.path[0] = ""
        if sys.version_info >= (3, 13):  # Its tracebacks show the lines of -c.
            linecache.cache["<string>"] = (len(code), None, code.splitlines(keepends=True), "<string>")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.realpath(kind))
        main.__file__ = os.path.abspath(kind)
        try:
            file = open(kind, "rb")  # noqa: SIM115
        except OSError as error:
            said = f"can't open file {main.__file__!r}: [Errno {error.errno}] {error.strerror}"
            print(f"{sys.executable}: {said}", file=sys.stderr)
            sys.exit(2)
        with file:
            code = compile(file.read(), main.__file__, "exec")
        exec(code, main.__dict__)


def _main(request: Request, files: list[int]) -> None:
    try:
        _become(request, files)
        _execute(request.words[1:])
    except SystemExit:
        raise
    except BaseException as error:
        # The frames of this file are none of the program's.
        frames = error.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        if isinstance(error, KeyboardInterrupt):
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


class _Kept:
    """In place of a module in `sys.modules`: the interpreter's end does not empty it, and imports still find it."""

    def __init__(self, module: types.ModuleType) -> None:
        self.__dict__ = module.__dict__


def _keep_modules(names: set[str]) -> None:
    """Keeps modules from the interpreter's end."""
    kept = {name: sys.modules[name] for name in names if isinstance(sys.modules.get(name), types.ModuleType)}
    sys.modules.update((name, _Kept(module)) for name, module in kept.items())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _preload() -> None:
    names: set[str] = set()
    atexit.register(_keep_modules, names)  # Before the imports: what is registered first is called last.
    here = sys.path[0]
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    gc.set_threshold(*GC_THRESHOLD)
    with open(os.devnull, "w") as nothing:  # Some of TensorFlow's lines are silenced by no setting.
        stderr = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            for name in _PRELOADED:
                importlib.import_module(name)
        except BaseException:
            os.dup2(stderr, 2)
            traceback.print_exc()
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    sys.path[0] = here
    names.update(name for name in sys.modules if not name.startswith(_ENDED))
    gc.collect()
    gc.freeze()  # A collection writes into every object, and would copy the pages of all.


if __name__ == "__main__":
    _interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's is for the tests, and for the children.
    with socket.socket(socket.AF_UNIX) as _listener:
        try:
            _listener.bind("\0" + sys.argv[1])
        except OSError:
            sys.exit()  # Another process has started this server at the same time.
        _listener.listen(100)
        _preload()
        _found = _serve(_listener, os.pidfd_open(int(sys.argv[2])))
    if _found is not None:
        _main(*_found)
