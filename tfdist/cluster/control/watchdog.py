"""The watchdog process of a worker: it sends and receives the worker's heartbeats. Imports no TensorFlow.

While TensorFlow starts, which may take more than ten minutes, it ignores signals and lets no Python thread run. Later,
a long call such as `json.load` also blocks threads. So a separate process handles the heartbeats (peers.py). It
exchanges lines of JSON with the worker: `Peers.receive_from_worker` gets those of its standard input, and
`HeartbeatMonitor.receive` those of its standard output. It ends when the worker does. If another worker is lost before
TensorFlow has started, or if TensorFlow does not start in time, it kills the worker.
"""

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.control import heartbeat_monitor, peers
from tfdist.cluster.control import listener as listener_lib
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor, MessageReader
from tfdist.cluster.control.keys import Key
from tfdist.cluster.control.peers import Peers
from tfdist.cluster.discovery import hostlist, worker_spec
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# The folder that holds tfdist: the process starts faster without site-packages (-S), but then does not find it.
_PACKAGES = str(Path(__file__).parents[3])
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from tfdist.cluster.control import watchdog; watchdog.main()"
)
# Seconds between the message and SIGKILL: the others still get heartbeats, so all workers name the same lost worker.
_GRACE_SECONDS = 2.0
# Seconds for which the messages of many workers are collected.
_BATCH_SECONDS = 0.2


def listen(spec: WorkerSpec) -> socket.socket | None:
    """On the chief, opens the port for heartbeats; if it is in use, any free one. Returns None on other workers."""
    if spec.rank:
        return None
    try:
        return listener_lib.listen(spec.heartbeat_port)
    except OSError:
        return listener_lib.listen(0)


def start(
    *,
    rank: int,
    members: Sequence[Mapping[str, Any]],
    listener: socket.socket | None,
    options: config_lib.ClusterOptions,
    key: Key,
) -> HeartbeatMonitor:
    """Starts the watchdog process and the monitor that talks to it; called once per worker, before TensorFlow starts.

    Args:
        members: the workers, as returned by `rendezvous.rendezvous`; the chief's has `heartbeat_port`.
        listener: the result of `listen`.
        options: as for `heartbeat_monitor.start`, and `connect_seconds`.
        key: signs the messages.
    """
    known = members if rank == 0 else [members[0], members[rank]]
    arguments = {
        "pid": os.getpid(),
        "rank": rank,
        "size": len(members),
        "members": [[worker["rank"], worker["host"], worker["pid"]] for worker in known],
        "heartbeat_seconds": options.heartbeat_seconds,
        "connect_seconds": worker_spec.connect_seconds(options.connect_seconds, len(members)),
        "address": [hostlist.split_address(members[0]["address"])[0], members[0]["heartbeat_port"]],
        "listener": listener and listener.fileno(),
        "key": key.value.hex(),
        "progressed": slurm_requeue.progressed(),
    }
    # In a session of its own, so that Ctrl-C reaches only the worker. When the worker exits, the pipe closes.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[] if listener is None else [listener.fileno()],
    )
    if listener is not None:
        listener.close()
    monitor = heartbeat_monitor.start(rank=rank, members=members, options=options, watchdog=process)
    # Not on the command line: it is limited to 128 KiB (about 1,100 workers), and other users can read it.
    monitor.tell(arguments)
    return monitor


def main() -> None:
    """Runs the watchdog process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # Slurm sends them to all processes of a step.
        signal.signal(number, signal.SIG_IGN)  # It ends with its worker, which may be saving.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        arguments = json.loads(stdin.readline())
    event_loop(0 if arguments["listener"] is None else arguments["size"]).run_until_complete(_watch(**arguments))
    os._exit(0)  # A thread may still be resolving a host name.


def event_loop(connections: int) -> asyncio.AbstractEventLoop:
    """Returns the event loop for a process with this number of connections."""
    return asyncio.SelectorEventLoop(_Batches() if connections > peers.MAX_PER_SECOND else None)


async def _watch(
    *,
    pid: int,
    members: Sequence[tuple[int, str, int]],
    address: Sequence[Any],
    listener: int | None,
    key: str,
    progressed: bool | None,
    **fields: Any,
) -> None:
    def tell(message: dict[str, Any]) -> None:
        if "lost" in message and not known.started:
            ending.append(asyncio.ensure_future(_end_worker(known, pid, progressed)))
        else:
            with contextlib.suppress(OSError):  # The worker has ended.
                os.write(1, json.dumps(message).encode() + b"\n")

    ending: list[asyncio.Task] = []
    by_rank = {rank: (host, worker) for rank, host, worker in members}
    known = Peers(**fields, members=by_rank, tell=tell, is_stopped=lambda: _is_stopped(pid))
    reader = MessageReader(known.receive_from_worker)
    asyncio.get_running_loop().add_reader(0, lambda: reader.read(0) or known.ended.set())
    watching = asyncio.ensure_future(_end_with_worker(pid, known.ended))
    place = tuple(address) if listener is None else socket.socket(fileno=listener)
    await known.watch(place, Key(bytes.fromhex(key)))
    watching.cancel()


async def _end_with_worker(pid: int, ended: asyncio.Event) -> None:
    """Detects the worker's end even if a child of the worker keeps the pipe open."""
    while os.getppid() == pid:
        await asyncio.sleep(peers.INTERVAL_SECONDS)
    ended.set()


async def _end_worker(known: Peers, pid: int, progressed: bool | None) -> None:
    """Prints the reason, requeues the Slurm job in place of the worker if allowed, and kills the worker."""
    print(f"tfdist: worker {known.rank}: {known.loss['lost']}. Restart all workers", file=sys.stderr, flush=True)
    await asyncio.sleep(_GRACE_SECONDS)
    if known.ended.is_set():
        return
    if progressed is not None and known.loss["is_transient"]:
        slurm_requeue.enable_requeue(known.rank, interruption.StopRequest(), lambda: progressed)
        slurm_requeue.requeue(in_turn=True)
    os.kill(pid, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    """Returns True if a process is suspended (SIGSTOP)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class _Batches(selectors.DefaultSelector):
    """Reads the messages of many workers a few times per second: waking up for each takes twice the CPU time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As in `selectors`, but sleeps first."""
        if timeout is None or timeout > 0:
            pause = _BATCH_SECONDS if timeout is None else min(timeout, _BATCH_SECONDS)
            time.sleep(pause)
            timeout = None if timeout is None else timeout - pause
        return super().select(timeout)
