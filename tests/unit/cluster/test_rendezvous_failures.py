"""Workers that do not find each other, and what names the cause: real sockets on this machine."""

import concurrent.futures
import dataclasses
import functools
import json
import pathlib
import socket
import tempfile
import time

import pytest
from launching import free_ports
from rendezvous_threads import GRACE_SECONDS, Workers, assert_all_ports_are_free, run, worker_specs

from tfdist.cluster import error_report, interruption
from tfdist.cluster.control import decision, heartbeat_monitor, keys, listener, rendezvous
from tfdist.cluster.discovery import environment


def one_is_asked_to_stop(asked: int, absent: int | None) -> None:
    """With a worker missing, it is asked while it waits; else before."""
    workers = Workers()
    stop = interruption.StopRequest(reason="SIGTERM" if absent is None else None)
    present = [spec for spec in worker_specs(free_ports(3)) if spec.rank != absent]
    for spec in present:
        workers.start(spec, seconds=60.0, stop=stop if spec.rank == asked else None)
    time.sleep(1.0)
    stop.reason = "SIGTERM"
    port = next(one.port for one in present if one.rank == asked)
    for outcome in workers.join():
        assert isinstance(outcome.error, interruption.StopError) and outcome.seconds < 30, outcome
        assert f"SIGTERM to rank {asked} (localhost:{port})" in outcome.message


def one_is_missing(absent: int) -> None:
    ports = free_ports(4)
    outcomes = run([(spec, {"seconds": 3.0}) for spec in worker_specs(ports) if spec.rank != absent])
    for outcome in outcomes:
        assert isinstance(outcome.error, TimeoutError)
        assert f"rank {absent} (localhost:{ports[absent]})" in outcome.message
        assert ("nothing is listening there" in outcome.message) == (absent == 0)
        assert "config.cluster.connect_seconds" in outcome.message
        assert outcome.seconds < 3.0 + GRACE_SECONDS
    assert max(outcome.seconds for outcome in outcomes) > 2.9  # One that starts later ends with the others.
    assert len({outcome.message for outcome in outcomes}) == 1
    assert_all_ports_are_free(ports)


def a_host_has_no_name() -> None:
    ports = free_ports(2)
    workers = [f"no-such-host.invalid:{ports[1]}", f"localhost:{ports[0]}"]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    place = environment.resolve({"TF_CONFIG": json.dumps(config)}, port_base=1024, port_count=1000)
    (outcome,) = run([(place, {"seconds": 1.0})])
    assert isinstance(outcome.error, TimeoutError) and outcome.seconds < 1.0 + GRACE_SECONDS
    assert f"rank 0 ({workers[0]}): its host name cannot be resolved" in outcome.message


def a_port_is_taken() -> None:
    ports = free_ports(3)
    with listener.listen(ports[2]):
        outcomes = run([(spec, {}) for spec in worker_specs(ports)])
    for outcome in outcomes:
        assert isinstance(outcome.error, OSError) and outcome.seconds < 15  # Not only at the deadline.
        assert f"rank 2 (localhost:{ports[2]}): port {ports[2]} on host" in outcome.message
        assert "config.cluster.port_base" in outcome.message


def a_port_that_tfdist_chose_is_taken() -> None:
    """All workers may be restarted. The others learn nothing from rank 0, which has ended."""
    ports = free_ports(3)
    specs = [dataclasses.replace(spec, launcher="slurm") for spec in worker_specs(ports)]
    with listener.listen(ports[0]):
        first, *others = run([(spec, {"seconds": 3.0}) for spec in specs])
    assert isinstance(first.error, decision.PortInUseError)
    assert first.error.exit_code == interruption.EXIT_PEER_LOST
    for outcome in others:
        assert isinstance(outcome.error, decision.MissingWorkersError)
        assert error_report.report_exception(outcome.error) == interruption.EXIT_PEER_LOST
        assert f"rank 0 (localhost:{ports[0]})" in outcome.message


def two_have_one_rank() -> None:
    ports = free_ports(3)
    specs = worker_specs(ports)
    # What should have been rank 2 claims to be rank 1; on another host, so to say: it can listen.
    specs[2] = dataclasses.replace(specs[1], port=ports[2])
    for outcome in run([(spec, {}) for spec in specs]):
        assert isinstance(outcome.error, OSError) and outcome.seconds < 15  # Not only at the deadline.
        assert "have rank 1" in outcome.message and "task.index" in outcome.message


def one_has_another_key() -> None:
    """As one of another job."""
    ports = free_ports(2)
    here, there = worker_specs(ports)
    first, second = run([(here, {"seconds": 2.0}), (there, {"seconds": 2.0, "key": keys.Key(b"another key")})])
    assert f"rank 1 (localhost:{ports[1]})" in first.message
    assert f"rank 0 (localhost:{ports[0]})" in second.message and "TFDIST_KEY" in second.message
    assert isinstance(first.error, TimeoutError) and isinstance(second.error, TimeoutError)


def one_does_not_see_the_workdir() -> None:
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        ours, mine = pathlib.Path(folder, "ours"), pathlib.Path(folder, "mine")
        mine.mkdir()
        workdirs = zip(worker_specs(ports), (ours, ours, mine), strict=True)
        outcomes = run([(spec, {"workdir": workdir, "seconds": 2.0}) for spec, workdir in workdirs])
        assert list(ours.iterdir()) == []
    for outcome in outcomes:
        assert isinstance(outcome.error, FileNotFoundError) and outcome.seconds < 2.0 + GRACE_SECONDS
        assert f"rank 2 (localhost:{ports[2]}), on host {socket.gethostname()}, at {mine}" in outcome.message
        assert "rank 1" not in outcome.message


# What fails, as a function that starts the workers and looks at how each ends.
TRIALS = {
    "one is asked before": functools.partial(one_is_asked_to_stop, 2, None),
    "one is asked while it waits": functools.partial(one_is_asked_to_stop, 0, 2),
    "rank 0 is missing": functools.partial(one_is_missing, 0),
    "rank 3 is missing": functools.partial(one_is_missing, 3),
    "a host has no name": a_host_has_no_name,
    "a port is taken": a_port_is_taken,
    "a port that tfdist chose is taken": a_port_that_tfdist_chose_is_taken,
    "two have one rank": two_have_one_rank,
    "one has another key": one_has_another_key,
    "one does not see the workdir": one_does_not_see_the_workdir,
}


@pytest.fixture(scope="module")
def results():
    """Trial -> its result, later; most of them wait, and so all run at the same time."""
    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(len(TRIALS)) as pool:
        # A cluster of an earlier test leaves its monitor, and with one only the first of two reports does not wait.
        patch.setattr(heartbeat_monitor, "_monitor", None)
        yield {name: pool.submit(trial) for name, trial in TRIALS.items()}


@pytest.mark.parametrize("name", TRIALS)
def test_all_workers_end_and_name_the_cause(results, name):
    results[name].result()


def test_workers_say_soon_what_they_wait_for_and_a_late_worker_may_still_join(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "_LOG_AFTER_SECONDS", (0.3, 1.0))
    ports, workers = free_ports(3), Workers()
    specs = worker_specs(ports)
    workers.start(specs[1])
    time.sleep(0.6)
    refused = f"rank 0 (localhost:{ports[0]}): nothing is listening there"
    assert f"waiting up to 20 s for a connection to {refused}" in capsys.readouterr().err
    workers.start(specs[0])
    time.sleep(1.5)
    assert f"1 of 3 workers: rank 2 (localhost:{ports[2]})" in capsys.readouterr().err
    workers.start(specs[2])
    assert all(outcome.error is None for outcome in workers.join())


def test_a_worker_with_other_facts_is_named_with_the_values():
    def facts(rank: int) -> dict[str, str]:
        return {"tensorflow": "2.20.0" if rank == 2 else "2.21.0", "python": "3.11"} | ({"config": "f"} if rank else {})

    specs = worker_specs(free_ports(4))
    specs[3] = dataclasses.replace(specs[3], num_workers=5)
    outcomes = run([(p, {"must_match": facts(p.rank)}) for p in specs])
    host = socket.gethostname()
    for outcome in outcomes:
        assert isinstance(outcome.error, ValueError)
        assert f"tensorflow: '2.21.0' on ranks 0-1, 3 ({host}); '2.20.0' on rank 2 ({host})" in outcome.message
        assert f"config: '(absent)' on rank 0 ({host}); 'f' on ranks 1-3 ({host})" in outcome.message
        assert f"number of workers: '4' on ranks 0-2 ({host}); '5' on rank 3 ({host})" in outcome.message
        assert "python" not in outcome.message


def test_a_gpu_that_two_workers_hold_is_named():
    outcomes = run([(p, {"exclusive": ["GPU 0", f"GPU {1 + p.rank}"]}) for p in worker_specs(free_ports(2))])
    for outcome in outcomes:
        assert isinstance(outcome.error, ValueError)
        assert f"GPU 0 on host {socket.gethostname()} is used by ranks 0-1" in outcome.message
        assert "GPU 1" not in outcome.message


def test_a_workdir_that_cannot_be_written_ends_all(tmp_path):
    (tmp_path / "file").write_text("")
    workdir = tmp_path / "file" / "run"
    for outcome in run([(spec, {"workdir": workdir}) for spec in worker_specs(free_ports(2))]):
        assert isinstance(outcome.error, OSError)
        assert f"workdir cannot be written: Not a directory. Received: '{workdir}'" in outcome.message
