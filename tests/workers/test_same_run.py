"""Promise 1: N replicas train and evaluate as one does."""

import functools
import json
import os
import socket

import numpy as np
import on_workers
import pytest
import topologies
from launching import run_all
from parameters import slow_except

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.cluster.devices import replicas
from tfdist.cluster.several_workers import multi_worker, tcp_ring

pytestmark = pytest.mark.usefixtures("graph_optimizers")
# (workers, logical devices of each)
TOPOLOGIES = slow_except([(2, 2), (3, 1), (1, 2), (2, 1)], [(2, 2)])
OVER_GRPC = "--config.communication.implementation=ring"
GROUPS = ["--config.model.normalization=batch", "--config.model.group_size=12"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains on (workers, devices), once in this module, and returns the workdir."""

    @functools.cache
    def workdir(workers, devices):
        path = tmp_path_factory.mktemp(f"on_{workers}_{devices}_")
        topologies.train(path, workers=workers, devices=devices)
        return path

    return workdir


@pytest.fixture(scope="module")
def one(trained):
    """The workdir of the run on one device."""
    return trained(1, 1)


@pytest.mark.parametrize(("workers", "devices"), TOPOLOGIES)
def test_weights_slots_and_losses_are_those_of_one_device(one, trained, workers, devices):
    several = trained(workers, devices)
    assert topologies.largest_difference(topologies.arrays(one), topologies.arrays(several)) < 1e-5
    losses = [np.array([line["loss"] for line in topologies.records(w, "train")]) for w in (one, several)]
    assert len(losses[0]) == 20
    for line in topologies.records(several, "train") if workers > 1 else ():
        assert 0 <= line["slowest_worker"] < len(line["worker_shares"]) == workers
        np.testing.assert_allclose(np.sum(line["worker_shares"], axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-6)
    for ours, theirs in zip(*(topologies.records(w, "evaluation") for w in (one, several)), strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["num_examples"] == theirs["num_examples"] == 355


@pytest.mark.parametrize(("workers", "devices"), slow_except([(1, 2), (3, 1), (1, 8)], [(1, 2)]))
def test_a_run_of_four_replicas_resumes_on_other_devices(trained, tmp_path, workers, devices):
    moved = topologies.cut_back(trained(2, 2), tmp_path / "moved", newest=10)
    topologies.train(moved, workers=workers, devices=devices)
    topologies.assert_resumed_as(trained(2, 2), moved)


@pytest.fixture(scope="module")
def in_groups(tmp_path_factory):
    """The arrays of the run on one device with statistics over groups, which need no communication."""
    workdir = tmp_path_factory.mktemp("groups")
    topologies.train(workdir, *GROUPS)
    return topologies.arrays(workdir)


@pytest.mark.slow
def test_statistics_over_groups_and_sums_in_packs_change_nothing(in_groups, tmp_path):
    packs = "--config.communication.bytes_per_pack=4096"
    topologies.train(tmp_path, *GROUPS, packs, workers=2, devices=2)
    assert topologies.largest_difference(in_groups, topologies.arrays(tmp_path)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_micro_batches_change_nothing(in_groups, tmp_path, workers):
    topologies.train(tmp_path, *GROUPS, "--config.train.micro_batches=2", workers=workers)
    found = topologies.arrays(tmp_path)
    # Of two micro-batches the moving statistics are those of two updates, not of their mean: only weights compare.
    weights = [name for name in in_groups if "moving" not in name]
    assert topologies.largest_difference({n: in_groups[n] for n in weights}, {n: found[n] for n in weights}) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(1, 7), (2, 2)])
def test_every_example_is_evaluated_once_on_any_number_of_replicas(one, workers, devices):
    # 1,797 examples in batches of 60: the last batch has 57. 7 divides neither these nor the 48 of the training.
    right = []
    for count, each in ((1, 1), (workers, devices)):
        options = ("--config.data.evaluation_split=all", f"--config.cluster.logical_devices={each}")
        line = topologies.command(one, "--mode=eval", *options)
        outputs = run_all([line] * count, topologies.environments(count))
        result = json.loads(outputs[0].splitlines()[-1])
        assert result["num_examples"] == 1797
        right.append(result["accuracy"] * 1797)
    assert 179 < right[0] < 1797  # Better than chance, after 20 steps.
    np.testing.assert_allclose(right, round(right[0]), rtol=0, atol=1e-6)


def connect_where_a_ring_is_unreachable():
    """Connects two workers. The second one accepts no connection, as behind a firewall that rejects it."""

    def closed():
        made = socket.socket()
        made.bind(("127.0.0.1", 0))
        return made, {"ring_port": made.getsockname()[1], "ring_nonce": "0" * 32}

    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        tcp_ring.listen = closed
    multi_worker._RING_SECONDS = 2.0
    cluster = strategy.connect(strategy.plan(c.ClusterOptions()))
    found = cluster.implementation, bool(replicas.rings), cluster.roster.notes, cluster.all_gather([7]).tolist()
    cluster.leave()
    return found


@pytest.mark.slow
def test_workers_that_cannot_connect_their_ring_use_grpc():
    for implementation, has_ring, notes, values in on_workers.call(connect_where_a_ring_is_unreachable, workers=2):
        assert implementation == "ring" and not has_ring and values == [[7], [7]]
        assert "2 workers could not connect for the ring over TCP: gRPC is used" in notes


@pytest.mark.slow
def test_two_workers_have_the_same_bits_over_tcp_and_over_grpc(trained, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):  # Of downloads: gRPC between workers uses none.
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    topologies.train(tmp_path, OVER_GRPC, workers=2, devices=1)
    topologies.assert_same_bits(topologies.arrays(trained(2, 1)), topologies.arrays(tmp_path))
