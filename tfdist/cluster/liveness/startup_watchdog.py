"""Limits the time of TensorFlow's start, and ends it if another worker dies meanwhile. Imports no TensorFlow.

TensorFlow waits there for more than ten minutes, ignores signals, and lets no Python thread run. So a separate process
(startup_watchdog_process.py) checks the other workers, and kills this one with SIGKILL.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.liveness import startup_watchdog_process


@contextlib.contextmanager
def deadline(rank: int, members: Sequence[Mapping[str, Any]], seconds: float) -> Iterator[None]:
    """Kills this process (SIGKILL) if the block takes longer than `seconds`, or if another worker dies in it.

    The watchdog process first prints which worker does not respond.

    Args:
        rank: the rank of this worker.
        members: the workers, as returned by `preflight.rendezvous`.
        seconds: time limit of the block.
    """
    others = [
        [
            *hostlist.split_address(worker["address"]),
            f"worker {worker['rank']} (host {worker['host']}, pid {worker['pid']})",
        ]
        for worker in members
        if worker["rank"] != rank
    ]
    arguments = json.dumps([os.getpid(), rank, seconds, others])
    # Without site-packages (-S) it starts in a few milliseconds.
    command = [sys.executable, "-I", "-S", startup_watchdog_process.__file__]
    # Its own session: Ctrl-C is for the worker. When the worker exits, the pipe closes and the watchdog ends.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, text=True
    ) as watchdog:
        # Not on the command line, whose arguments are limited to 128 KiB: about 1,100 workers.
        watchdog.stdin.write(f"{arguments}\n")
        watchdog.stdin.flush()
        yield
