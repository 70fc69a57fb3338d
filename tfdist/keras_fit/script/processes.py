"""Commands that a script starts run once: on the chief, for all workers, which get what it printed and its exit code.

`subprocess.run` and its like as a whole. A `subprocess.Popen` is on the other workers an object without a process: all
workers call its methods together, and the chief's results are theirs.
"""

import contextlib
import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import context

_FUNCTIONS = ("run", "call", "check_call", "check_output")
_METHODS = ("communicate", "wait", "poll", "send_signal", "terminate", "kill")
_PIPES = ("stdin", "stdout", "stderr")
# Process of the chief, or what stands for it on the other workers -> whether it exists here.
_shared: weakref.WeakKeyDictionary[subprocess.Popen, bool] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def run_once(cluster: Cluster) -> Iterator[None]:
    """Lets the chief run the commands of the script in the block."""
    if cluster.num_workers == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for name in _FUNCTIONS:
            stack.enter_context(patch(subprocess, name, _run))
        stack.enter_context(patch(os, "system", _run))
        stack.enter_context(patch(subprocess.Popen, "__init__", _start))
        for name in _METHODS:
            stack.enter_context(patch(subprocess.Popen, name, _method))
        yield


def _tell(place: str, name: str) -> None:
    messages.say_once(
        f"{place}: {name} runs on the chief only, for all workers; with --subprocesses=everywhere it runs on each.",
        key="processes",
    )


def _run(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Runs a command on the chief, for all workers."""
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    here = []

    def run() -> dict[str, Any]:
        _tell(place, original.__name__)
        try:
            found = original(*args, **keywords)
        except subprocess.CalledProcessError as error:
            here.append(error)
            return {"failed": [error.returncode, error.cmd, _encode(error.stdout), _encode(error.stderr)]}
        here.append(found)
        if not isinstance(found, subprocess.CompletedProcess):
            return {"value": _encode(found)}
        return {"code": found.returncode, "stdout": _encode(found.stdout), "stderr": _encode(found.stderr)}

    told = context.once(place, run)
    if not here and "failed" in told:
        code, command, *texts = told["failed"]
        here.append(subprocess.CalledProcessError(code, command, *map(_decode, texts)))
    if here and isinstance(here[0], Exception):
        raise here[0]
    if here:
        return here[0]
    if "value" in told:
        return _decode(told["value"])
    command = args[0] if args else keywords.get("args")
    return subprocess.CompletedProcess(command, told["code"], _decode(told["stdout"]), _decode(told["stderr"]))


def _start(original: Callable[..., None], process: subprocess.Popen, *args: Any, **keywords: Any) -> None:
    """Starts a process on the chief."""
    place = context.calling_line()
    if not place:
        original(process, *args, **keywords)
        return
    process.returncode = None
    _shared[process] = False

    def start() -> list[Any]:
        _tell(place, "Popen")
        _shared[process] = True
        original(process, *args, **keywords)
        return [process.pid, [getattr(process, name) is not None for name in _PIPES]]

    process.pid, has = context.once(place, start)
    process.args = args[0] if args else keywords.get("args")
    pipes = {name: _SharedPipe(vars(process).get(name)) for name in _PIPES}
    vars(process).update({name: pipes[name] if exists else None for name, exists in zip(_PIPES, has, strict=True)})


def _method(original: Callable[..., Any], process: subprocess.Popen, *args: Any, **keywords: Any) -> Any:
    """Calls a method of a process on the chief, for all workers."""
    pipes = {name: pipe for name in _PIPES if isinstance(pipe := vars(process).get(name), _SharedPipe)}

    def call() -> list[Any]:
        vars(process).update({name: pipe.real for name, pipe in pipes.items()})
        try:
            found = original(process, *args, **keywords)
        finally:
            vars(process).update(pipes)
        return [_encode([*found] if isinstance(found, tuple) else found), process.returncode]

    place = context.calling_line() if process in _shared else ""
    if place:
        found, process.returncode = context.once(f"{place} {original.__name__}", call)
    elif not _shared.get(process, True):
        return process.returncode
    else:
        found, _ = call()
    found = _decode(found)
    return tuple(found) if isinstance(found, list) else found


class _SharedPipe(contextlib.AbstractContextManager):
    """A pipe to or from a process of the chief; `real` is None on the other workers, which get what the chief reads."""

    def __init__(self, real: Any):
        self.real = real

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            place = context.calling_line()
            if not place:
                return None if self.real is None else getattr(self.real, name)(*args, **keywords)
            there = context.once(f"{place} {name}", lambda: _encode(getattr(self.real, name)(*args, **keywords)))
            return _decode(there)

        return call

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def __exit__(self, *error: Any) -> None:
        self.close()


def _encode(value: Any) -> Any:
    if isinstance(value, list):
        return {"list": [_encode(one) for one in value]}
    return {"bytes": value.hex()} if isinstance(value, bytes) else {"value": value}


def _decode(value: dict[str, Any]) -> Any:
    if "list" in value:
        return [_decode(one) for one in value["list"]]
    return bytes.fromhex(value["bytes"]) if "bytes" in value else value["value"]
