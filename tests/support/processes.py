"""Starts, watches and ends the processes of tests; none is left behind."""

import concurrent.futures
import contextlib
import functools
import json
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import forked
import psutil

REPOSITORY = pathlib.Path(__file__).parents[2]
T = TypeVar("T")


@contextlib.contextmanager
def started(
    commands: Sequence[list[str]],
    environments: Sequence[dict[str, str]],
    *,
    popen: Callable[..., subprocess.Popen] = forked.Popen,
    grace: float = 0.0,
    **keywords: Any,
) -> Iterator[list[subprocess.Popen]]:
    """Starts processes side by side in the repository; at the end of the `with` block all are ended.

    Args:
        commands: one for each process.
        environments: one for each process.
        popen: subprocess.Popen for processes without TensorFlow, which a forked one has imported.
        grace: how many seconds a process has between SIGTERM and SIGKILL; 0 sends SIGKILL alone.
        **keywords: for `popen`; without them, standard output and error go to one pipe.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    keywords = {"cwd": REPOSITORY} | pipes | keywords
    processes: list[subprocess.Popen] = []
    try:
        for command, env in zip(commands, environments, strict=True):
            processes.append(popen(command, env=env, **keywords))
        yield processes
    finally:
        if grace:
            for process in processes:
                process.terminate()  # A launcher that is killed would leave its workers behind.
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=grace)
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def run(
    commands: Sequence[list[str]],
    environments: Sequence[dict[str, str]],
    *,
    timeout: float = 300.0,
    cwd: pathlib.Path = REPOSITORY,
) -> tuple[list[int], list[str]]:
    """Runs processes side by side.

    Args:
        commands: one for each process.
        environments: one for each process.
        timeout: the most seconds that it waits for the end of each.
        cwd: where they run.

    Returns:
        Exit codes, and what each wrote to standard output and error.

    Raises:
        subprocess.TimeoutExpired: a process has not ended.
    """
    with started(commands, environments, grace=10.0, cwd=cwd) as processes:
        # One after another: the output of those that wait fits into their pipes.
        outputs = [process.communicate(timeout=timeout)[0].decode() for process in processes]
    return [process.returncode for process in processes], outputs


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Runs the calls in parallel, in threads; returns their results in the order of the calls."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


def measure_groups(measure: Callable[[Any], T], together: Sequence[Any]) -> Callable[[Any], T]:
    """`measure`, called once for each name; the first of the names `together` measures all of them at the same time."""
    found: dict[Any, T] = {}

    def get(name: Any) -> T:
        if name not in found:
            names = together if name in together else [name]
            found.update(zip(names, at_once(*(functools.partial(measure, one) for one in names)), strict=True))
        return found[name]

    return get


def until(
    condition: Callable[[], Any], seconds: float = 120.0, shown: Callable[[], str] = str, pause: float = 0.02
) -> Any:
    """Waits until `condition()` is true, and returns its value; `shown()` is the message after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, shown()
        time.sleep(pause)
    return value


def children(parent: int) -> list[int]:
    """The ids of the processes that a process has started and that have not ended."""
    try:
        found = psutil.Process(parent).children()
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in found if _query(child.status, psutil.STATUS_ZOMBIE) != psutil.STATUS_ZOMBIE]


def tasks(parent: int) -> dict[tuple[str, int], int]:
    """The ids of the processes that a process has started with a TF_CONFIG, by type and index of their tasks."""
    found = {pid: json.loads(environment(pid).get("TF_CONFIG") or "{}").get("task") for pid in children(parent)}
    return {(task["type"], task["index"]): pid for pid, task in found.items() if task}


def running(mark: str) -> list[str]:
    """The command lines that contain `mark`, of all processes of this machine."""
    return [line for line in map(command_line, psutil.pids()) if mark in line]


def command_line(pid: int) -> str:
    """Returns the command line of a process; "" if it has ended."""
    try:
        return " ".join(_query(psutil.Process(pid).cmdline, []))
    except psutil.NoSuchProcess:
        return ""


def environment(pid: int) -> dict[str, str]:
    """Returns the environment of a process at its start; {} if it has ended."""
    try:
        return _query(psutil.Process(pid).environ, {})
    except psutil.NoSuchProcess:
        return {}


def _query(method: Callable[[], Any], default: Any) -> Any:
    """Returns the result of a method of psutil; `default` if the process has ended or is another user's."""
    try:
        return method()
    except (psutil.Error, OSError):
        return default
