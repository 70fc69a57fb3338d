"""Starts the control plane of many workers on this machine, without TensorFlow: `python -m tests.crowd --workers=1024`.

Forks the workers of one job, which meet, compare values and then send heartbeats, as those of a training do. Cases:

    idle      all are there: the time until they have met, memory, and the chief's share of a core
    killed    one of them is killed (SIGKILL)
    stopped   one of them is stopped (SIGSTOP)
    absent    one of them never comes
    fifth     a contiguous fifth of them never comes

Prints what was measured and what the others said. Exits with 1 if they did not name those that were lost, or if a limit
of time, memory or processor time is exceeded.
"""

import argparse
import collections
import contextlib
import gc
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from typing import Any

import psutil

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))  # Where pytest finds it.
import launching

from tfdist.cluster import interruption
from tfdist.cluster.control import keys, listener, peers, rendezvous, watchdog
from tfdist.cluster.discovery.worker_spec import WorkerSpec

CASES = ("idle", "killed", "stopped", "absent", "fifth")
KEY = keys.Key(b"k" * 64)
# Values of the size of a config, which the workers compare.
VALUES = {f"config.field{number}": "value" for number in range(60)}
IDLE_SECONDS = 10.0
# Seconds after the last start in which all must have met; MiB (PSS) of the chief, which has a connection to each, and
# of another worker; the chief's share of a core when idle.
MOST_SECONDS, MOST_OF_CHIEF, MOST_MEMORY, MOST_BUSY = 10.0, 40.0, 15.0, 0.02


def worker(rank: int, addresses: list[str], ports: list[int], seconds: float, limit: float, out: int) -> None:
    """One worker: reports when it has met the others, and ends when one of them is lost."""
    spec = WorkerSpec(
        launcher="tf_config",
        rank=rank,
        num_workers=len(ports),
        addresses=tuple(addresses),
        port=ports[rank],
        job="crowd",
    )
    listening = watchdog.listen(spec)
    metadata = {"heartbeat_port": listening.getsockname()[1]} if listening else {}
    try:
        members = rendezvous.rendezvous(spec, must_match=VALUES, seconds=seconds, metadata=metadata, key=KEY)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(interruption.EXIT_PEER_LOST)
    os.write(out, b"%f\n" % time.monotonic())
    by_rank = {member["rank"]: (member["host"], member["pid"]) for member in members if rank in (0, member["rank"])}

    def tell(message: dict[str, Any]) -> None:
        if "lost" in message:
            print(f"tfdist: worker {rank}: {message['lost']}", file=sys.stderr, flush=True)
            known.ended.set()

    async def watch() -> None:
        nonlocal known
        by_rank[0] = (members[0]["host"], members[0]["pid"])
        limits = {"heartbeat_seconds": limit, "connect_seconds": seconds}
        known = peers.Peers(rank=rank, size=len(ports), members=by_rank, tell=tell, started=True, **limits)
        address = listening or ("localhost", members[0]["heartbeat_port"])
        await known.watch(address, KEY)

    known = None
    watchdog.event_loop(len(ports) if listening else 0).run_until_complete(watch())
    os._exit(interruption.EXIT_PEER_LOST)


class Crowd:
    """The workers of one case."""

    def __init__(self, size: int, limit: float, absent: range, folder: pathlib.Path):
        self.size, self.folder = size, folder
        self.seconds = max(6.0, size / 16)
        ports = launching.free_ports(size)
        addresses = [f"localhost:{port}" for port in ports]
        self.met, out = os.pipe()
        self.pids: dict[int, int] = {}
        self.started = time.monotonic()
        for rank in range(size):
            if rank in absent:
                continue
            pid = os.fork()
            if pid == 0:
                error = os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT)
                os.dup2(error, 2)
                worker(rank, addresses, ports, self.seconds, limit, out)
            self.pids[rank] = pid
        self.forked = time.monotonic()
        os.close(out)

    def times_met(self) -> list[float]:
        """When each worker had met the others; the pipe closes if one ends before."""
        text = b""
        while text.count(b"\n") < self.size:
            part = os.read(self.met, 65536)
            if not part:
                break
            text += part
        return [float(line) for line in text.split()]

    def ends(self, ranks: list[int], seconds: float) -> tuple[dict[int, int], float]:
        """Waits until these have ended; returns their exit codes, and the seconds that it took."""
        started, codes = time.monotonic(), {}
        while len(codes) < len(ranks) and time.monotonic() - started < seconds:
            for rank in ranks:
                if rank not in codes:
                    pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
                    if pid:
                        codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return codes, time.monotonic() - started

    def said(self, rank: int) -> str:
        """What a worker wrote to standard error."""
        return (self.folder / f"{rank}.err").read_text()

    def kill(self) -> None:
        """Ends all workers that are left."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self.met)


def run(case: str, size: int, limit: float) -> bool:
    """Runs a case; prints what was measured, and returns whether all is as it should be."""
    first = size // 3
    absent = {"absent": range(first, first + 1), "fifth": range(first, first + size // 5)}.get(case, range(0))
    with tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(size, limit, absent, pathlib.Path(folder))
        try:
            return (_missing if absent else _meeting)(case, crowd, absent, limit)
        finally:
            crowd.kill()


def _missing(case: str, crowd: Crowd, absent: range, limit: float) -> bool:
    del limit
    codes, _ = crowd.ends([*crowd.pids], 3 * crowd.seconds + 60)
    each = "".join(rf"rank {rank} \(.*\n?.*" for rank in absent)
    names = each if len(absent) <= 20 else rf"ranks {absent[0]}-{absent[-1]} on localhost\n"
    return _verdict(case, crowd, codes, [*crowd.pids], names, crowd.seconds)


def _meeting(case: str, crowd: Crowd, absent: range, limit: float) -> bool:
    del absent
    times = crowd.times_met()
    forked, met = crowd.forked - crowd.started, max(times, default=0.0) - crowd.started
    print(f"{case}: {len(times)} of {crowd.size} workers met in {met:.1f} s, {met - forked:.1f} s after the last start")
    if len(times) < crowd.size or met - forked > MOST_SECONDS:
        return False
    time.sleep(2 + 2 * peers.interval(crowd.size, limit))
    if case == "idle":
        return _idle(crowd)
    victim = crowd.size // 2
    others = [rank for rank in crowd.pids if rank != victim]
    os.kill(crowd.pids[victim], signal.SIGKILL if case == "killed" else signal.SIGSTOP)
    codes, seconds = crowd.ends(others, limit + 120)
    return _verdict(case, crowd, codes, others, rf"worker {victim} \(host .*\) is lost: (last|no) heartbeat ", seconds)


def _idle(crowd: Crowd) -> bool:
    chief = psutil.Process(crowd.pids[0])
    before = chief.cpu_times()
    time.sleep(IDLE_SECONDS)
    after = chief.cpu_times()
    busy = (after.user + after.system - before.user - before.system) / IDLE_SECONDS
    ranks = [0, *range(1, crowd.size, max(1, crowd.size // 16))]
    memory = [psutil.Process(crowd.pids[rank]).memory_full_info().pss / 2**20 for rank in ranks]
    alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in crowd.pids.values())
    print(f"idle: the chief uses {100 * busy:.1f} % of a core")
    print(f"idle: memory (PSS) of the chief {memory[0]:.1f} MiB, of another worker {max(memory[1:]):.1f} MiB")
    print(f"idle: {alive} of {crowd.size} are there after {IDLE_SECONDS:g} s more")
    return alive == crowd.size and memory[0] <= MOST_OF_CHIEF and max(memory[1:]) <= MOST_MEMORY and busy <= MOST_BUSY


def _verdict(case: str, crowd: Crowd, codes: dict[int, int], ranks: list[int], names: str, seconds: float) -> bool:
    texts = [crowd.said(rank) for rank in codes]
    naming = sum(bool(re.search(names, text)) for text in texts)
    plain = [re.sub(r"worker \d+: |[\d.]+ s ago", "", text) for text in texts]
    longest = max(map(len, texts))
    print(f"{case}: {len(codes)} of {len(ranks)} ended in {seconds:.1f} s, {naming} named it, in {longest} characters:")
    for text, number in collections.Counter(plain).most_common(3):
        print(f"    {number} times: " + text.strip().replace("\n", "\n    "))
    expected = set(codes.values()) == {interruption.EXIT_PEER_LOST}
    return expected and len(codes) == naming == len(ranks) and longest < 1000


def main() -> int:
    """Runs the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1024)
    parser.add_argument("--cases", default=",".join(CASES), help=f"any of {', '.join(CASES)}")
    parser.add_argument("--heartbeat_seconds", type=float, default=10.0)
    options = parser.parse_args()
    listener.raise_descriptor_limit()
    gc.freeze()  # A collection in a worker does not copy the pages that it shares with the others.
    good = [run(case, options.workers, options.heartbeat_seconds) for case in options.cases.split(",")]
    print(json.dumps(dict(zip(options.cases.split(","), good, strict=True))))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
