"""Names of hosts that do not resolve are reported at once, before the workers wait for one another."""

import socket
import time

import pytest

from tfdist.cluster.discovery import host_names
from tfdist.cluster.discovery.worker_spec import WorkerSpec

SLURM = WorkerSpec(launcher="slurm", num_workers=3, addresses=("n9:10000", "n10:10000", "n11:10000"), port=10000)
MPI = WorkerSpec(launcher="mpi", num_workers=2, chiefs=("batch:10000", "n1:10000"), port=10000)


def looking_up(*known, code=socket.EAI_NONAME):
    def look_up(host, port):
        if host not in known:
            raise socket.gaierror(code, "no such name")
        return [(2, 1, 6, "", ("192.0.2.1", 0))]

    return look_up


def test_unknown_names_are_reported_in_slurms_notation():
    with pytest.raises(ValueError, match=r"cannot resolve names of workers' hosts: n\[10-11\], from SLURM_STEP_NODE"):
        host_names.check(SLURM, {}, seconds=0.5, look_up=looking_up("n9"))
    host_names.check(SLURM, {}, seconds=0.5, look_up=looking_up("n9", "n10", "n11"))


def test_one_host_where_rank_0_may_be_is_enough():
    host_names.check(MPI, {}, seconds=0.5, look_up=looking_up("n1"))
    with pytest.raises(ValueError, match=r"hosts: batch,n1, from TFDIST_CHIEF"):
        host_names.check(MPI, {}, seconds=0.5, look_up=looking_up())


def test_names_that_may_still_appear_are_waited_for_elsewhere():
    host_names.check(SLURM, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, look_up=looking_up())
    host_names.check(SLURM, {}, seconds=0.5, look_up=looking_up(code=socket.EAI_AGAIN))  # The name server is busy.
    started = time.monotonic()
    host_names.check(SLURM, {}, seconds=0.2, look_up=lambda host, port: time.sleep(1))  # No answer.
    assert time.monotonic() - started < 0.9


def test_a_name_that_appears_at_the_second_attempt_is_known():
    attempts = []

    def look_up(host, port):
        attempts.append(host)
        return looking_up("n9", "n10", *(["n11"] if attempts.count("n11") == 2 else []))(host, port)

    host_names.check(SLURM, {}, seconds=3.0, look_up=look_up)
    assert sorted(attempts) == ["n10", "n11", "n11", "n9"]
