"""Names of hosts that do not resolve are reported at once, before the workers wait for one another."""

import dataclasses
import socket
import threading

import pytest

from tfdist.cluster.discovery import host_names
from tfdist.cluster.discovery.worker_spec import WorkerSpec

SLURM = WorkerSpec(launcher="slurm", num_workers=3, addresses=("n9:10000", "n10:10000", "n11:10000"), port=10000)
MPI = WorkerSpec(launcher="mpi", num_workers=2, chiefs=("batch:10000", "n1:10000"), port=10000)


@pytest.fixture
def check(monkeypatch):
    """Returns `host_names.check`, given what looks up names, and the seconds for that."""

    def run(spec, env, look_up, seconds=0.5):
        monkeypatch.setattr(host_names.socket, "getaddrinfo", look_up)
        monkeypatch.setattr(host_names, "SECONDS", seconds)
        host_names.check(spec, env)

    return run


def looking_up(*known, code=socket.EAI_NONAME):
    def look_up(host, port):
        if host not in known:
            raise socket.gaierror(code, "no such name")
        return [(2, 1, 6, "", ("192.0.2.1", 0))]

    return look_up


def test_unknown_names_are_reported_in_slurms_notation(check):
    with pytest.raises(ValueError, match=r"n\[10-11\]"):
        check(SLURM, {}, looking_up("n9"))
    check(SLURM, {}, looking_up("n9", "n10", "n11"))


def test_a_thousand_workers_look_up_a_few_thousand_names(check):
    nodes, asked = [f"n{rank}" for rank in range(1000)], []
    addresses = tuple(f"{node}:10000" for node in nodes)

    def look_up(host, port):
        asked.append(host)
        return looking_up(*nodes)(host, port)

    for rank in range(1000):
        check(dataclasses.replace(SLURM, rank=rank, num_workers=1000, addresses=addresses), {}, look_up, seconds=30.0)
    assert set(asked[:1000]) == set(nodes) and len(asked) < 1000 + 3 * 999
    with pytest.raises(ValueError, match="n100"):  # Its own.
        spec = dataclasses.replace(SLURM, rank=100, num_workers=1000, addresses=addresses)
        check(spec, {}, looking_up(*nodes[:100], *nodes[101:]))


def test_one_host_where_rank_0_may_be_is_enough(check):
    check(MPI, {}, looking_up("n1"))
    with pytest.raises(ValueError, match="batch,n1"):
        check(MPI, {}, looking_up())


def test_names_that_may_still_appear_are_waited_for_elsewhere(check):
    check(SLURM, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, looking_up())
    check(SLURM, {}, looking_up(code=socket.EAI_AGAIN))  # The name server is busy.
    answer = threading.Event()
    check(SLURM, {}, lambda host, port: answer.wait(60), seconds=0.2)  # No answer: its own end comes first.
    answer.set()
