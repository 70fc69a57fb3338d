"""Workers that find each other: real sockets on this machine, threads or processes."""

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from launching import free_ports
from parameters import slow_except
from rendezvous_threads import GRACE_SECONDS, Workers, assert_all_ports_are_free, run, tf_config, worker_specs

from tfdist.cluster.control import alone, rendezvous
from tfdist.cluster.discovery import environment, hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def test_all_workers_connect_and_get_the_same_roster():
    ports = free_ports(4)
    facts = {"tensorflow": "2.21.0"}
    outcomes = run([(p, {"must_match": facts, "metadata": {"devices": f"GPU {p.rank}"}}) for p in worker_specs(ports)])
    expected = [
        {
            "rank": rank,
            "address": f"localhost:{port}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "devices": f"GPU {rank}",
        }
        for rank, port in enumerate(ports)
    ]
    assert [outcome.roster for outcome in outcomes] == [expected] * 4
    assert max(outcome.seconds for outcome in outcomes) < 10
    assert_all_ports_are_free(ports)


def test_sixteen_workers_are_quick():
    outcomes = run([(spec, {}) for spec in worker_specs(free_ports(16))])
    assert all(outcome.roster == outcomes[0].roster for outcome in outcomes)
    assert [worker["rank"] for worker in outcomes[0].roster] == list(range(16))
    assert max(outcome.seconds for outcome in outcomes) < 10


@pytest.mark.parametrize("late", slow_except([0, 2], [2]))
def test_a_late_worker_is_waited_for(late):
    workers, all_places = Workers(), worker_specs(free_ports(3))
    for spec in all_places:
        if spec.rank != late:
            workers.start(spec)
    time.sleep(0.5)
    workers.start(all_places[late])
    assert all(len(outcome.roster) == 3 for outcome in workers.join())


def test_connections_of_other_programs_change_nothing():
    ports = free_ports(3)
    workers, all_places = Workers(), worker_specs(ports)
    for spec in all_places[:2]:
        workers.start(spec)
    time.sleep(0.3)
    hello = {"rank": 2, "host": "evil", "pid": 1, "metadata": {}, "must_match": {}, "exclusive": [], "port": 1}
    told = json.dumps(hello | {"dialled": "evil", "failed": "", "port_in_use": False}).encode()
    with contextlib.ExitStack() as stack:
        for port in ports[:2]:
            for text in (
                b"",  # Half-open: connects and says nothing.
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\xff\xfe\n",
                b"[" * 100_000 + b"\n",
                b"null\n",
                b"{}\n",
                # Without the key, a third worker.
                b"%s %d %s %s\n%s" % (b"0" * 32, len(told), hashlib.sha256(told).hexdigest().encode(), b"0" * 64, told),
                told,  # No end of line.
            ):
                stranger = stack.enter_context(socket.create_connection(("localhost", port)))
                stranger.sendall(text)
            socket.create_connection(("localhost", port)).close()
        workers.start(all_places[2])
        outcomes = workers.join()
    assert all(len(outcome.roster) == 3 for outcome in outcomes)
    assert max(outcome.seconds for outcome in outcomes) < 10
    assert_all_ports_are_free(ports)


def test_workers_without_known_addresses_connect():
    """MPI ranks over several hosts: rank 0 is found, and tells all where the others are."""
    port, other_port = free_ports(2)

    def place(rank: int, chief_port: int = port) -> WorkerSpec:
        env = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "3",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            "TFDIST_CHIEF": f"localhost:{chief_port}",
        }
        found = environment.resolve(env, port_base=1024, port_count=1000)
        # All on one host, where one rank's port cannot be another's.
        return dataclasses.replace(found, port=chief_port if rank == 0 else free_ports(1)[0])

    all_places = [place(rank) for rank in range(3)]
    assert all(spec.addresses == () for spec in all_places)
    # Of two places where rank 0 may be, another rank listens at the first.
    all_places[2] = dataclasses.replace(all_places[2], chiefs=(f"localhost:{all_places[1].port}", f"localhost:{port}"))
    outcomes = run([(spec, {}) for spec in all_places])
    for outcome in outcomes:
        assert [hostlist.split_address(w["address"])[1] for w in outcome.roster] == [p.port for p in all_places]
    # One that does not come is named, and so is a rank 0 that is not there, of another job at the same time.
    *outcomes, alone = run([(spec, {"seconds": 1.5}) for spec in (*all_places[:2], place(1, other_port))])
    for outcome in outcomes:
        assert isinstance(outcome.error, TimeoutError)
        assert "1 of 3 workers did not connect to rank 0" in outcome.message and "rank 2" in outcome.message
        assert outcome.seconds < 1.5 + GRACE_SECONDS
    assert "Could not connect to rank 0 within 1.5 s" in alone.message and "set TFDIST_CHIEF" in alone.message
    assert alone.seconds < 1.5 + GRACE_SECONDS


def test_a_shared_workdir_is_made_and_left_empty(tmp_path):
    workdir = tmp_path / "runs" / "first"
    outcomes = run([(spec, {"workdir": workdir}) for spec in worker_specs(free_ports(3))])
    assert all(len(outcome.roster) == 3 for outcome in outcomes)
    assert list(workdir.iterdir()) == []


def test_a_worker_alone_opens_nothing():
    spec = WorkerSpec(launcher="local")
    roster = rendezvous.rendezvous(spec, must_match={}, metadata={"devices": "CPU"}, seconds=0.0)
    assert roster == [
        {"rank": 0, "address": "localhost", "host": socket.gethostname(), "pid": os.getpid(), "devices": "CPU"}
    ]


def test_proxies_are_unset():
    names = ["http_proxy", "HTTPS_PROXY", "all_proxy", "grpc_proxy"]
    env = dict.fromkeys(names, "http://proxy:3128") | {"no_proxy": "localhost", "PATH": "/bin"}
    assert sorted(alone.unset_proxies(env)) == sorted(names)
    assert env == {"no_proxy": "localhost", "PATH": "/bin"}


WORKER = """
import json, os, signal, sys
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import rendezvous
if sys.argv[1] == "handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
spec = environment.resolve(os.environ, port_base=1024, port_count=1000)
print("ready", flush=True)
roster = rendezvous.rendezvous(spec, must_match={}, metadata={"argument": sys.argv[1]}, seconds=60.0)
assert "tensorflow" not in sys.modules
print(json.dumps(roster))
"""


@contextlib.contextmanager
def process(ports: list[int], rank: int, argument: str):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMI"))}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, argument], env=kept | tf_config(ports, rank), stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout.readline() == "ready\n"
            yield worker
        finally:
            worker.kill()


def test_processes_connect():
    ports = free_ports(3)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(process(ports, rank, f"rank {rank}")) for rank in range(3)]
        rosters = [json.loads(worker.communicate(timeout=20)[0]) for worker in workers]
        pids = [worker.pid for worker in workers]
    assert rosters[0] == rosters[1] == rosters[2]
    assert [(w["pid"], w["argument"]) for w in rosters[0]] == [(p, f"rank {r}") for r, p in enumerate(pids)]


@pytest.mark.parametrize(("argument", "code"), [("default", -signal.SIGTERM), ("handler", 7)])
@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_ends_the_wait(rank, argument, code):
    with process(free_ports(2), rank, argument) as worker:
        time.sleep(0.2)
        start = time.monotonic()
        worker.terminate()
        assert worker.wait(timeout=10) == code
        assert time.monotonic() - start < 3
