"""Starts the watchdog process of a worker (startup_watchdog_process.py). Imports no TensorFlow.

It limits the time of TensorFlow's start, and ends it if another worker dies meanwhile: TensorFlow waits there for more
than ten minutes, ignores signals, and lets no Python thread run. Later it replies for the worker if a long call holds
Python's lock, so that the worker's thread sends no heartbeats: it is busy, not lost.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster import slurm_requeue
from tfdist.cluster.control import listener as listener_lib
from tfdist.cluster.control.keys import Key
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_PROGRAM = Path(__file__).with_name("startup_watchdog_process.py")
# The watchdog process of this worker after its start, which ends when the worker ends.
_running: list[subprocess.Popen] = []


def listen(spec: WorkerSpec) -> socket.socket:
    """Opens the port at which the watchdog process replies for this worker."""
    return listener_lib.listen(0, listener_lib.own_address(spec))


@contextlib.contextmanager
def deadline(
    rank: int,
    members: Sequence[Mapping[str, Any]],
    seconds: float,
    listener: socket.socket | None = None,
    keys: Key | None = None,
) -> Iterator[None]:
    """Kills this process (SIGKILL) if the block takes longer than `seconds`, or if another worker dies in it.

    The watchdog process first prints which worker does not respond, and requeues the Slurm job if this process may.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`.
        listener: where the watchdog process replies for this worker after the block; None: it ends with the block.
        keys: what signs its replies.
    """
    others = [_other(worker) for worker in members if worker["rank"] != rank]
    port = None if listener is None else listener.fileno()
    secrets = [keys.value.hex()] if keys else []
    arguments = json.dumps([os.getpid(), rank, seconds, others, slurm_requeue.restart_helps(), port, secrets])
    # Without site-packages (-S) it starts in a few milliseconds.
    command = [sys.executable, "-I", "-S", str(_PROGRAM)]
    # Its own session: Ctrl-C is for the worker. When the worker exits, the pipe closes and the watchdog ends.
    watchdog = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        pass_fds=[] if port is None else [port],
    )
    try:
        # Not on the command line: it is limited to 128 KiB, about 1,100 workers, and others can read it.
        _tell(watchdog, arguments)
        yield
    except BaseException:
        listener = None
        raise
    finally:
        if listener is None:
            with contextlib.suppress(OSError):
                watchdog.stdin.close()
            watchdog.wait()
    if listener is not None:
        _tell(watchdog, "started")
        listener.close()
        _running.append(watchdog)


def _other(worker: Mapping[str, Any]) -> tuple[str, int, int | None, str]:
    host, port = hostlist.split_address(worker["address"])
    name = f"worker {worker['rank']} (host {worker['host']}, pid {worker['pid']})"
    return host, port, worker.get("watchdog_port"), name


def _tell(watchdog: subprocess.Popen, line: str) -> None:
    """Sends a line to the watchdog. If it was killed, the worker starts without one."""
    with contextlib.suppress(OSError):
        watchdog.stdin.write(f"{line}\n")
        watchdog.stdin.flush()
