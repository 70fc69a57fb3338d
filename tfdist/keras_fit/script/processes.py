"""Commands that a script starts run once: on the chief, for all workers, which get what it printed."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import replaced
from tfdist.keras_fit.script import context

_FUNCTIONS = ("run", "call", "check_call", "check_output")
# Whether a line has said where commands run.
_told = False


@contextlib.contextmanager
def run_once(cluster: Cluster) -> Iterator[None]:
    """Lets the chief run the commands of the script in the block; `subprocess.Popen` starts them on every worker."""
    if cluster.num_workers == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for name in _FUNCTIONS:
            stack.enter_context(replaced(subprocess, name, _process))
        stack.enter_context(replaced(os, "system", _process))
        yield


def _process(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Runs a command on the chief, for all workers."""
    global _told
    place = context.calling_line()
    if not place:
        return original(*args, **keywords)
    here = []

    def run() -> dict[str, Any]:
        global _told
        if not _told:
            _told = True
            print(
                f"tfdist: {place}: {original.__name__} runs on the chief only, for all workers; with "
                "--subprocesses=everywhere it runs on each.",
                file=sys.stderr,
                flush=True,
            )
        here.append(original(*args, **keywords))
        found = here[0]
        if not isinstance(found, subprocess.CompletedProcess):
            return {"value": _encoded(found)}
        return {"code": found.returncode, "stdout": _encoded(found.stdout), "stderr": _encoded(found.stderr)}

    told = context.once(place, run)
    if here:
        return here[0]
    if "value" in told:
        return _decoded(told["value"])
    command = args[0] if args else keywords.get("args")
    return subprocess.CompletedProcess(command, told["code"], _decoded(told["stdout"]), _decoded(told["stderr"]))


def _encoded(value: Any) -> dict[str, Any]:
    return {"bytes": value.hex()} if isinstance(value, bytes) else {"value": value}


def _decoded(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["bytes"]) if "bytes" in value else value["value"]
