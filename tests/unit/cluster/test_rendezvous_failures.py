"""Workers that do not find each other, and what names the cause: real sockets on this machine."""

import concurrent.futures
import dataclasses
import functools
import json
import pathlib
import socket
import time
from collections.abc import Callable

import pytest
from launching import free_ports
from rendezvous_threads import GRACE_SECONDS, Outcome, Workers, assert_all_ports_are_free, run, worker_specs

from tfdist.cluster import error_report, interruption
from tfdist.cluster.control import decision, keys, listener, rendezvous
from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery.worker_spec import WorkerSpec


def asked_to_stop(asked: int, absent: int | None) -> tuple[list[WorkerSpec], list[Outcome]]:
    workers = Workers()
    stop = interruption.StopRequest(reason="SIGTERM" if absent is None else None)
    present = [spec for spec in worker_specs(free_ports(3)) if spec.rank != absent]
    for spec in present:
        workers.start(spec, seconds=60.0, stop=stop if spec.rank == asked else None)
    time.sleep(1.0)
    stop.reason = "SIGTERM"
    return present, workers.join()


def missing(absent: int) -> tuple[list[int], list[Outcome]]:
    ports = free_ports(4)
    return ports, run([(p, {"seconds": 3.0}) for p in worker_specs(ports) if p.rank != absent])


def without_a_name() -> tuple[str, list[Outcome]]:
    ports = free_ports(2)
    workers = [f"no-such-host.invalid:{ports[1]}", f"localhost:{ports[0]}"]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    place = environment.resolve({"TF_CONFIG": json.dumps(config)}, port_base=1024, port_count=1000)
    return workers[0], run([(place, {"seconds": 1.0})])


def with_a_taken_port(rank: int, **changes: str) -> tuple[list[int], list[Outcome]]:
    ports = free_ports(3)
    specs = [dataclasses.replace(spec, **changes) for spec in worker_specs(ports)]
    with listener.listen(ports[rank]):
        # Without rank 0, nobody tells the others.
        return ports, run([(spec, {"seconds": 20.0 if rank else 3.0}) for spec in specs])


def with_one_rank() -> tuple[list[int], list[Outcome]]:
    ports = free_ports(3)
    all_places = worker_specs(ports)
    # What should have been rank 2 claims to be rank 1; on another host, so to say: it can listen.
    all_places[2] = dataclasses.replace(all_places[1], port=ports[2])
    return ports, run([(spec, {}) for spec in all_places])


def with_another_key() -> tuple[list[int], list[Outcome]]:
    ports = free_ports(2)
    here, there = worker_specs(ports)
    other = keys.Key(b"another key")
    return ports, run([(here, {"seconds": 2.0}), (there, {"seconds": 2.0, "key": other})])


def with_two_workdirs(place: pathlib.Path) -> tuple[list[int], pathlib.Path, list[Outcome]]:
    ports = free_ports(3)
    (place / "mine").mkdir()
    workdirs = [place / "ours", place / "ours", place / "mine"]
    return ports, place, run([(p, {"workdir": workdirs[p.rank], "seconds": 2.0}) for p in worker_specs(ports)])


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Callable[..., tuple]:
    """Name and arguments of a rendezvous above -> what it returns; all of them wait side by side."""
    trials = {
        "asked": asked_to_stop,
        "absent": missing,
        "no name": without_a_name,
        "taken": with_a_taken_port,
        "taken by another program of the node": functools.partial(with_a_taken_port, launcher="slurm"),
        "one rank": with_one_rank,
        "another key": with_another_key,
        "workdirs": functools.partial(with_two_workdirs, tmp_path_factory.mktemp("workdirs")),
    }
    together = [("asked", 2, None), ("asked", 0, 2), ("absent", 0), ("absent", 3), ("no name",), ("taken", 2)]
    together += [("taken by another program of the node", 0), ("one rank",), ("another key",), ("workdirs",)]
    with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
        running = {(name, *arguments): pool.submit(trials[name], *arguments) for name, *arguments in together}
    return lambda *trial: running[trial].result()


@pytest.mark.parametrize(("asked", "absent"), [(2, None), (0, 2)])
def test_one_worker_that_is_asked_to_stop_ends_the_wait_of_all(found, asked, absent):
    """With a worker missing, it is asked while it waits; else before."""
    present, outcomes = found("asked", asked, absent)
    port = next(one.port for one in present if one.rank == asked)
    for outcome in outcomes:
        assert isinstance(outcome.error, interruption.StopError) and outcome.seconds < 30, outcome
        assert f"SIGTERM to rank {asked} (localhost:{port})" in outcome.message


@pytest.mark.parametrize("absent", [0, 3])
def test_a_missing_worker_is_named_by_all_others_at_the_deadline(found, absent):
    ports, outcomes = found("absent", absent)
    for outcome in outcomes:
        assert isinstance(outcome.error, TimeoutError)
        assert f"rank {absent} (localhost:{ports[absent]})" in outcome.message
        assert ("nothing is listening there" in outcome.message) == (absent == 0)
        assert "config.cluster.connect_seconds" in outcome.message
        assert 2.9 < outcome.seconds < 3.0 + GRACE_SECONDS
    assert len({outcome.message for outcome in outcomes}) == 1
    assert_all_ports_are_free(ports)


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


def test_a_host_without_a_name_is_named_with_the_reason(found):
    address, (outcome,) = found("no name")
    assert isinstance(outcome.error, TimeoutError)
    assert f"rank 0 ({address}): its host name cannot be resolved" in outcome.message
    assert outcome.seconds < 1.0 + GRACE_SECONDS


def test_a_taken_port_is_named_by_all(found):
    ports, outcomes = found("taken", 2)
    for outcome in outcomes:
        assert isinstance(outcome.error, OSError) and outcome.seconds < 15  # Not only at the deadline.
        assert f"rank 2 (localhost:{ports[2]}): port {ports[2]} on host" in outcome.message
        assert "config.cluster.port_base" in outcome.message


def test_after_a_taken_port_that_tfdist_chose_all_workers_may_be_restarted(found):
    ports, (first, *others) = found("taken by another program of the node", 0)
    assert isinstance(first.error, decision.PortInUseError)
    assert first.error.exit_code == interruption.EXIT_PEER_LOST
    for outcome in others:
        assert isinstance(outcome.error, decision.MissingWorkersError)
        assert error_report.report_exception(outcome.error) == interruption.EXIT_PEER_LOST
        assert f"rank 0 (localhost:{ports[0]})" in outcome.message


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


def test_two_processes_with_one_rank_are_noticed(found):
    _, outcomes = found("one rank")
    for outcome in outcomes:
        assert isinstance(outcome.error, OSError)
        assert "have rank 1" in outcome.message and "task.index" in outcome.message
        assert outcome.seconds < 15  # Not only at the deadline.


def test_a_worker_with_another_key_is_named(found):
    """As one of another job, whose key is another."""
    ports, outcomes = found("another key")
    assert f"rank 1 (localhost:{ports[1]})" in outcomes[0].message
    assert f"rank 0 (localhost:{ports[0]})" in outcomes[1].message and "TFDIST_KEY" in outcomes[1].message
    assert all(isinstance(outcome.error, TimeoutError) for outcome in outcomes)


def test_workers_that_do_not_see_the_workdir_are_named(found):
    ports, place, outcomes = found("workdirs")
    for outcome in outcomes:
        assert isinstance(outcome.error, FileNotFoundError)
        named = f"rank 2 (localhost:{ports[2]}), on host {socket.gethostname()}, at {place / 'mine'}"
        assert named in outcome.message
        assert "rank 1" not in outcome.message
        assert outcome.seconds < 2.0 + GRACE_SECONDS
    assert list((place / "ours").iterdir()) == []


def test_a_workdir_that_cannot_be_written_ends_all(tmp_path):
    (tmp_path / "file").write_text("")
    workdir = tmp_path / "file" / "run"
    for outcome in run([(spec, {"workdir": workdir}) for spec in worker_specs(free_ports(2))]):
        assert isinstance(outcome.error, OSError)
        assert f"workdir cannot be written: Not a directory. Received: '{workdir}'" in outcome.message
