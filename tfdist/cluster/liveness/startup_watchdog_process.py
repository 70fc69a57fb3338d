"""The watchdog process of startup_watchdog.py; a program that imports the standard library only.

It reads its arguments as one line of JSON from standard input. A second line follows when the worker has started; until
then it connects to the watchdog ports of the others every second: each is open from the rendezvous until the worker
ends. If a firewall closes one, or a watchdog was killed, it connects to the gRPC port, which TensorFlow opens early in
its start. Afterwards it replies to other workers whether its worker is running or stopped, until standard input closes:
the worker has ended.
"""

import contextlib
import itertools
import json
import os
import pathlib
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

_CHECK_SECONDS, _CONNECT_SECONDS = 1.0, 1.0
# Workers that are checked at the same time, once a second.
_CHECKS_AT_ONCE = 64
# A worker is lost, if a port of it was open, after this many failed checks in a row.
_FAILED_CHECKS = 3
# For imports of tfdist, after the start.
_PACKAGES = str(pathlib.Path(__file__).parents[3])
# Seconds between the message and SIGKILL: the other workers still find this one, so they all name the same culprit.
_GRACE_SECONDS = 2.0

# A worker: host, gRPC port, watchdog port, name.
_Other = tuple[str, int, int | None, str]


def watch(
    stdin: BinaryIO,
    pid: int,
    rank: int,
    seconds: float,
    others: Sequence[_Other],
    restart_helps: bool | None,
) -> None:
    """Kills the worker and prints which other worker does not respond, unless it starts or ends in time.

    Args:
        stdin: standard input, without a buffer.
        pid: process id of the worker.
        others: host, gRPC port, watchdog port (None: unknown) and name of each other worker, in rank order.
        restart_helps: see `slurm_requeue.restart_helps`.
    """
    deadline = time.monotonic() + seconds
    opened: set[str] = set()
    failures: dict[str, int] = {}
    unreachable: dict[str, str] = {}
    turns = itertools.cycle(others)
    while True:
        left = deadline - time.monotonic()
        # In a large job some workers in turn, and again those that have just failed.
        checked = [*itertools.islice(turns, min(len(others), _CHECKS_AT_ONCE))]
        checked += [other for other in others if other[-1] in failures and other not in checked]
        found = _unreachable(checked, opened)
        unreachable = {n: why for n, why in unreachable.items() if n not in {name for *_, name in checked}} | found
        failures = {name: failures.get(name, 0) + 1 for name in found if name in opened}
        lost = [name for name, count in failures.items() if count >= _FAILED_CHECKS]
        if lost:
            text = "; ".join(f"{name} is lost: it no longer answers ({unreachable[name]})" for name in lost)
            break
        if left <= 0:
            cause = "; ".join(f"{name} does not answer ({why})" for name, why in unreachable.items())
            cause = cause or "all others respond, so one of them is hanging"
            text = f"TensorFlow did not start within {seconds:g} s after a successful rendezvous: {cause}"
            break
        if select.select([stdin], [], [], min(_CHECK_SECONDS, left))[0]:
            return
    sys.stderr.write(f"tfdist: worker {rank}: {text}. Restart all workers\n")
    sys.stderr.flush()
    if select.select([stdin], [], [], _GRACE_SECONDS)[0]:
        return
    if restart_helps is not None:
        names = [name for *_, name in others]
        names.insert(rank, "")
        _requeue(rank, restart_helps, [names.index(name) for name in unreachable])
    os.kill(pid, signal.SIGKILL)


def _requeue(rank: int, restart_helps: bool, lost: Sequence[int]) -> None:
    """Requeues the Slurm job in place of the worker; see `slurm_requeue.requeue`."""
    sys.path.insert(0, _PACKAGES)
    from tfdist.cluster import interruption, slurm_requeue

    slurm_requeue.enable_requeue(rank, interruption.StopRequest(), lambda: restart_helps)
    slurm_requeue.requeue(lost)


def _unreachable(others: Sequence[_Other], opened: set[str]) -> Mapping[str, str]:
    """Connects to `others`; returns name -> reason of those that fail. Adds names with an open port to `opened`."""
    found = {}

    def check(host: str, port: int, watchdog_port: int | None, name: str) -> None:
        if watchdog_port is not None:
            with contextlib.suppress(OSError), socket.create_connection((host, watchdog_port), _CONNECT_SECONDS):
                opened.add(name)
                return
        try:
            with socket.create_connection((host, port), _CONNECT_SECONDS) as connection:
                # gRPC's server sends first, and so does the rendezvous, which used this port before: "tfdist/1".
                if name not in opened and connection.recv(1) not in (b"", b"t"):
                    opened.add(name)
        except TimeoutError:
            found[name] = "no answer"
        except OSError as error:
            found[name] = error.strerror or str(error)

    threads = [threading.Thread(target=check, args=other) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@contextlib.contextmanager
def _accepting(descriptor: int) -> Iterator[None]:
    """Accepts and closes the connections of the other watchdogs: the queue of pending ones is limited."""
    ended = threading.Event()
    listener = socket.socket(fileno=os.dup(descriptor))
    listener.settimeout(0.1)

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                listener.accept()[0].close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        listener.close()


def reply(stdin: BinaryIO, pid: int, descriptor: int, secrets: Sequence[str]) -> None:
    """Replies to other workers whether process `pid` is running, until it ends.

    Args:
        stdin: standard input, without a buffer.
        pid: process id of the worker.
        descriptor: the listening socket.
        secrets: the keys, in hexadecimal digits.
    """
    # Here, because the start needs none of them.
    sys.path.insert(0, _PACKAGES)
    import asyncio

    from tfdist.cluster.control import keys as keys_lib
    from tfdist.cluster.control import listener as listener_lib
    from tfdist.cluster.control.wire import Channel

    keys = keys_lib.Key(bytes.fromhex(secrets[0]))

    async def handle(channel: Channel, request: dict) -> None:
        channel.send({"pid": pid, "running": request.get("pid") == pid and _is_running(pid)})
        await channel.receive()  # The client closes first.

    async def serve() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(stdin, ended.set)
        async with listener_lib.serving(socket.socket(fileno=descriptor), keys, handle):
            while not ended.is_set() and os.getppid() == pid:  # A child of the worker may hold the pipe open.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ended.wait(), _CHECK_SECONDS)

    asyncio.run(serve())


def _is_running(pid: int) -> bool:
    """Returns False if a process is stopped or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"T", b"t", b"Z", b"X")


if __name__ == "__main__":
    for _signal in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # Slurm sends them to all processes of a step.
        signal.signal(_signal, signal.SIG_IGN)  # It ends with its worker, which may be saving.
    # Without a buffer: `select` does not see what is in one.
    with open(0, "rb", buffering=0) as _stdin:
        _pid, *_arguments, _descriptor, _secrets = json.loads(_stdin.readline())
        with contextlib.nullcontext() if _descriptor is None else _accepting(_descriptor):
            watch(_stdin, _pid, *_arguments)
        if _stdin.readline() and _descriptor is not None:
            reply(_stdin, _pid, _descriptor, _secrets)
