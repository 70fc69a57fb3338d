"""The process beside a worker that keeps the time while TensorFlow starts; see starting.py. A program of its own.

Its standard input ends when the worker has started, or has died. Until then it calls the other workers' ports every
second: TensorFlow opens each early in its start, and closes it only when the process ends.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

# Seconds between two rounds of calls; how often in a row a port that was open must not answer; how long a call lasts.
_PAUSE_SECONDS, _CALLS, _CALL_SECONDS = 1.0, 3, 1.0
# Seconds in which the other workers may still find this one, and see for themselves who it is that is missing.
_FAREWELL_SECONDS = 2.0


def watch(pid: int, rank: int, seconds: float, others: Sequence[tuple[str, int, str]], mouth: int) -> None:
    """Ends the worker `pid`, naming who does not answer, unless standard input ends within so many seconds.

    Args:
        pid: the process of the worker.
        rank: its rank.
        seconds: how long its start may take.
        others: (host, port, name) of each other worker.
        mouth: a pipe: the worker ends with its own code when something is written there.
    """
    deadline = time.monotonic() + seconds
    opened: set[str] = set()
    failures: dict[str, int] = {}
    while True:
        left = deadline - time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, min(_PAUSE_SECONDS, left)))[0]:
            return
        silent = _silent(others, opened)
        failures = {name: failures.get(name, 0) + 1 for name in silent if name in opened}
        lost = [name for name, count in failures.items() if count >= _CALLS]
        if lost:
            text = "; ".join(f"{name} is lost: it no longer answers ({silent[name]})" for name in lost)
            break
        if left <= 0:
            who = "; ".join(f"{name} does not answer ({why})" for name, why in silent.items())
            who = who or "all others answer, so that one of them hangs"
            text = f"TensorFlow has not started within {seconds:g} s although all workers had met: {who}"
            break
    sys.stderr.write(f"tfdist: worker {rank}: {text}. Start all workers again\n")
    sys.stderr.flush()
    time.sleep(_FAREWELL_SECONDS)
    os.write(mouth, b"x")
    if not select.select([sys.stdin], [], [], _FAREWELL_SECONDS)[0]:
        os.kill(pid, signal.SIGKILL)


def _silent(others: Sequence[tuple[str, int, str]], opened: set[str]) -> Mapping[str, str]:
    """Calls all others; returns the names of those that do not answer, and why; adds those that do to `opened`."""
    found = {}
    for host, port, name in others:
        try:
            with socket.create_connection((host, port), _CALL_SECONDS) as connection:
                # gRPC greets who calls. What the workers met with, before, at this very port, does not.
                if name not in opened and connection.recv(1):
                    opened.add(name)
        except TimeoutError:
            found[name] = "no answer"
        except OSError as error:
            found[name] = error.strerror or str(error)
    return found


if __name__ == "__main__":
    watch(*json.loads(sys.argv[1]))
