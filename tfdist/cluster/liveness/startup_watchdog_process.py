"""The watchdog process of startup_watchdog.py; a program that imports the standard library only.

It reads its arguments as one line of JSON from standard input, which closes when the worker has started, or has died.
Until then it connects to the other workers' gRPC ports every second: TensorFlow opens each port early in its start, and
closes it only when the process ends.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

_CHECK_SECONDS, _CONNECT_SECONDS = 1.0, 1.0
# A worker whose port was open is lost after this many failed checks in a row.
_FAILED_CHECKS = 3
# Seconds between the message and SIGKILL: the other workers still find this one, so they all name the same culprit.
_GRACE_SECONDS = 2.0


def watch(pid: int, rank: int, seconds: float, others: Sequence[tuple[str, int, str]]) -> None:
    """Kills the worker and prints which other worker does not respond, unless standard input closes in time.

    Args:
        pid: process id of the worker.
        rank: its rank.
        seconds: time limit of its start.
        others: (host, port, name) of each other worker.
    """
    deadline = time.monotonic() + seconds
    opened: set[str] = set()
    failures: dict[str, int] = {}
    while True:
        left = deadline - time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, min(_CHECK_SECONDS, left)))[0]:
            return
        unreachable = _unreachable(others, opened)
        failures = {name: failures.get(name, 0) + 1 for name in unreachable if name in opened}
        lost = [name for name, count in failures.items() if count >= _FAILED_CHECKS]
        if lost:
            text = "; ".join(f"{name} is lost: it no longer answers ({unreachable[name]})" for name in lost)
            break
        if left <= 0:
            cause = "; ".join(f"{name} does not answer ({why})" for name, why in unreachable.items())
            cause = cause or "all others respond, so one of them is hanging"
            text = f"TensorFlow did not start within {seconds:g} s after a successful rendezvous: {cause}"
            break
    sys.stderr.write(f"tfdist: worker {rank}: {text}. Restart all workers\n")
    sys.stderr.flush()
    if not select.select([sys.stdin], [], [], _GRACE_SECONDS)[0]:
        os.kill(pid, signal.SIGKILL)


def _unreachable(others: Sequence[tuple[str, int, str]], opened: set[str]) -> Mapping[str, str]:
    """Connects to all others; returns name -> reason of those that fail. Adds names with a gRPC server to `opened`."""
    found = {}
    for host, port, name in others:
        try:
            with socket.create_connection((host, port), _CONNECT_SECONDS) as connection:
                # gRPC's server sends first. The rendezvous, which used this port before, does not.
                if name not in opened and connection.recv(1):
                    opened.add(name)
        except TimeoutError:
            found[name] = "no answer"
        except OSError as error:
            found[name] = error.strerror or str(error)
    return found


if __name__ == "__main__":
    watch(*json.loads(sys.stdin.readline()))
