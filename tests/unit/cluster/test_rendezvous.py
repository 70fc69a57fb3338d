"""Workers that find each other: real sockets on this machine, threads or processes."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from launching import free_ports
from rendezvous_threads import GRACE_SECONDS, assert_all_ports_are_free, run, tf_config, worker_specs

from tfdist.cluster.discovery import environment, hostlist
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def test_sixteen_workers_connect_soon_and_get_the_same_roster():
    ports, facts = free_ports(16), {"tensorflow": "2.21.0"}
    outcomes = run([(p, {"must_match": facts, "metadata": {"devices": f"GPU {p.rank}"}}) for p in worker_specs(ports)])
    own = {"host": socket.gethostname(), "pid": os.getpid()}
    expected = [
        {"rank": rank, "address": f"localhost:{port}", **own, "devices": f"GPU {rank}"}
        for rank, port in enumerate(ports)
    ]
    assert [outcome.roster for outcome in outcomes] == [expected] * 16
    assert max(outcome.seconds for outcome in outcomes) < 10
    assert_all_ports_are_free(ports)


def test_workers_without_known_addresses_connect():
    """MPI ranks over several hosts: rank 0 is found, and tells all where the others are."""
    port, other_port = free_ports(2)

    def place(rank: int, chief_port: int = port) -> WorkerSpec:
        env = {"RANK": f"{rank}", "SIZE": "3", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
        env = {f"OMPI_COMM_WORLD_{name}": value for name, value in env.items()}
        env |= {"TFDIST_CHIEF": f"localhost:{chief_port}"}
        found = environment.resolve(env, port_base=1024, port_count=1000)
        # All on one host, where one rank's port cannot be another's.
        return dataclasses.replace(found, port=chief_port if rank == 0 else free_ports(1)[0])

    all_places = [place(rank) for rank in range(3)]
    # Of two places where rank 0 may be, another rank listens at the first.
    all_places[2] = dataclasses.replace(all_places[2], chiefs=(f"localhost:{all_places[1].port}", f"localhost:{port}"))
    for outcome in run([(spec, {}) for spec in all_places]):
        assert [hostlist.split_address(w["address"])[1] for w in outcome.roster] == [p.port for p in all_places]
    # One that does not come is named, and so is a rank 0 that is not there, of another job at the same time.
    *outcomes, alone = run([(spec, {"seconds": 1.5}) for spec in (*all_places[:2], place(1, other_port))])
    for outcome in (*outcomes, alone):
        assert isinstance(outcome.error, TimeoutError) and outcome.seconds < 1.5 + GRACE_SECONDS
    assert all("rank 2" in outcome.message for outcome in outcomes)
    assert "rank 0" in alone.message and "TFDIST_CHIEF" in alone.message


WORKER = """
import os, signal, sys
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import rendezvous
if sys.argv[1] == "handler":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
spec = environment.resolve(os.environ, port_base=1024, port_count=1000)
print("ready", flush=True)
rendezvous.rendezvous(spec, must_match={}, metadata={"argument": sys.argv[1]}, seconds=60.0)
"""


@pytest.mark.parametrize(("rank", "argument", "code"), [(0, "handler", 7), (1, "default", -signal.SIGTERM)])
def test_sigterm_ends_the_wait(rank, argument, code):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMI"))}
    command, env = [sys.executable, "-c", WORKER, argument], kept | tf_config(free_ports(2), rank)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "ready\n"
        time.sleep(0.2)
        worker.terminate()
        assert worker.wait(timeout=30) == code
