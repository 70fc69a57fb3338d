"""Ends a worker that waits in TensorFlow's start for one that has died since all had met. Imports no TensorFlow.

TensorFlow waits there for more than ten minutes, deaf to signals, and no thread of Python runs meanwhile: a process
beside it keeps the time.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster import hosts

# Given the pid of the worker, its rank, the seconds, and [address, port, name] of each other worker. Its standard input
# ends when the worker has started, or has died.
_KEEPER = """
import json, os, select, signal, socket, sys, time
pid, rank, seconds, others = json.loads(sys.argv[1])
if not select.select([sys.stdin], [], [], seconds)[0]:
    silent = []
    for host, port, name in others:
        try:
            socket.create_connection((host, port), 1.0).close()
        except OSError as error:
            silent.append(f"{name} does not answer ({error.strerror or error})")
    who = "; ".join(silent) or "all others answer, so that one of them hangs"
    sys.stderr.write(f"tfdist: worker {rank}: TensorFlow has not started within {seconds:g} s although all workers had "
                     f"met: {who}. Start all workers again\\n")
    sys.stderr.flush()
    time.sleep(2.0)  # The others shall still find this one.
    os.kill(pid, signal.SIGKILL)
"""


@contextlib.contextmanager
def limited(rank: int, roster: Sequence[Mapping[str, Any]], seconds: float) -> Iterator[None]:
    """Kills this process (SIGKILL: nothing else reaches it), naming who does not answer, if a block takes longer.

    Args:
        rank: of this worker.
        roster: what `preflight.check` has returned.
        seconds: how long the block may take.
    """
    others = [
        [
            *hosts.split_address(worker["address"]),
            f"worker {worker['rank']} (host {worker['host']}, pid {worker['pid']})",
        ]
        for worker in roster
        if worker["rank"] != rank
    ]
    command = [sys.executable, "-I", "-S", "-c", _KEEPER, json.dumps([os.getpid(), rank, seconds, others])]
    # Control-C is for the worker: it lives on, or ends and takes the pipe away.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        yield
