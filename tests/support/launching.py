"""A short training of configs/digits.py, for tests that run it under different launchers; commands in general."""

import contextlib
import csv
import fcntl
import os
import pathlib
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from typing import Any

import forked
import processes
from processes import REPOSITORY as REPOSITORY

from tfdist.cluster.control import listener

# Variables of the launcher of the tests, and the level of TensorFlow's log.
_REMOVED = ("SLURM", "OMPI_", "PMI_", "PMIX_", "TF_CONFIG", "TFDIST_", "TF_CPP_MIN_LOG_LEVEL")
# The range of `free_ports`.
_PORTS = (20000, 32000)


def free_ports(count: int) -> list[int]:
    """Finds ports that no program uses, and that the kernel gives to no outgoing connection.

    A worker opens its port seconds later. So all tests that run at the same time use one counter, in a file, and a port
    is used again only after thousands of others.
    """
    ports: list[int] = []
    with open(pathlib.Path(tempfile.gettempdir()) / f"tfdist-test-ports-{os.getuid()}", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or 0)
        while len(ports) < count:
            port = port + 1 if _PORTS[0] <= port < _PORTS[1] else random.randrange(*_PORTS)
            with contextlib.suppress(OSError), listener.listen(port):
                ports.append(port)
        file.truncate(0)
        file.write(str(port))
    return ports


def train_command(workdir: os.PathLike | str, *options: str) -> list[str]:
    """The command of a worker: 20 steps, in batches that 1, 2 and 4 replicas divide."""
    return [
        *(sys.executable, "-m", "tfdist.main", "--config=configs/digits.py", f"--workdir={workdir}"),
        *("--config.train.epochs=none", "--config.train.steps=20", "--config.learning_rate.warmup_epochs=0"),
        "--config.learning_rate.peak=0.01",
        *("--config.report.tensorboard=false", "--config.cluster.connect_seconds=240", *options),
    ]


def worker_environment(**variables: str) -> dict[str, str]:
    """The environment of a worker on the CPU, without what launched the tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED)}
    return env | {"CUDA_VISIBLE_DEVICES": ""} | variables


def python(
    *words: os.PathLike | str,
    code: int | None = 0,
    start: Callable[..., subprocess.CompletedProcess] = forked.run,
    cwd: os.PathLike | str = REPOSITORY,
    timeout: float = 600.0,
    **variables: str,
) -> subprocess.CompletedProcess:
    """Runs `python WORDS` with the environment of a worker, and asserts its exit code.

    Args:
        *words: as "-m", a module and its arguments.
        code: the exit code; None: any.
        start: subprocess.run if the test is about the start.
        cwd: where it runs.
        timeout: the most seconds that it may take.
        **variables: more of the environment.

    Returns:
        The process that has ended, with its `stdout` and `stderr` as texts.
    """
    command = [sys.executable, *map(str, words)]
    env = worker_environment(**variables)
    done = start(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def run_all(
    commands: list[list[str]],
    environments: list[dict[str, str]],
    *,
    timeout: float = 300.0,
    cwd: pathlib.Path = REPOSITORY,
) -> list[str]:
    """Runs processes side by side, asserts that all end with 0, and returns their outputs; none is left behind."""
    codes, outputs = processes.run(commands, environments, timeout=timeout, cwd=cwd)
    assert codes == [0] * len(codes), "\n".join([f"exit codes {codes}", *outputs])
    return outputs


def tfdist(
    *words: os.PathLike | str, start: Callable[..., subprocess.CompletedProcess] = subprocess.run, **options: Any
) -> subprocess.CompletedProcess:
    """Runs `python -m tfdist` and these words as `python` does, with its options.

    `start`: `forked.run` for a command that imports TensorFlow and whose start is not what is tested.
    """
    return python("-m", "tfdist", *words, start=start, **options)


def csv_rows(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def on_a_terminal(command: list[str], popen: Callable[..., subprocess.Popen] = forked.Popen) -> str:
    """Runs a command whose output is a terminal of 80 columns; asserts that it ends with 0, and returns the output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env, parts = worker_environment(TERM="xterm"), []
    with processes.started([command], [env], popen=popen, stdout=theirs, stderr=theirs) as (process,):
        os.close(theirs)
        with contextlib.suppress(OSError):  # The process has closed its end of the terminal.
            while select.select([ours], [], [], 1500)[0]:
                parts.append(os.read(ours, 65536))
        code = process.wait(timeout=60)
    os.close(ours)
    text = b"".join(parts).decode(errors="replace")
    assert code == 0, text
    return text
