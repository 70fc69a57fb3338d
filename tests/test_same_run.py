"""Promise 1: N replicas train and evaluate as one does."""

import json
import platform

import numpy as np
import pytest
import topologies
from launching import run_all

# (workers, logical devices of each)
TOPOLOGIES = [(1, 2), (2, 1), (4, 1), (2, 2)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The workdir of the run on one device."""
    workdir = tmp_path_factory.mktemp("one")
    topologies.train(workdir)
    return workdir


@pytest.mark.parametrize(("workers", "devices"), TOPOLOGIES)
def test_weights_slots_and_losses_are_those_of_one_device(one, tmp_path, workers, devices):
    topologies.train(tmp_path, workers=workers, devices=devices)
    assert topologies.largest_difference(topologies.arrays(one), topologies.arrays(tmp_path)) < 1e-5
    losses = [np.array([line["loss"] for line in topologies.records(w, "train")]) for w in (one, tmp_path)]
    assert len(losses[0]) == 20
    for line in topologies.records(tmp_path, "train") if workers > 1 else ():
        assert 0 <= line["slowest_worker"] < len(line["worker_shares"]) == workers
        np.testing.assert_allclose(np.sum(line["worker_shares"], axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-6)
    for ours, theirs in zip(*(topologies.records(w, "evaluation") for w in (one, tmp_path)), strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["num_examples"] == theirs["num_examples"] == 355


def test_the_log_says_that_malloc_was_set_and_how_to_leave_it_alone(one):
    (workers,) = topologies.records(one, "workers")
    if platform.libc_ver()[0] == "glibc":
        assert "--config.cluster.keep_freed_memory=false" in workers["workers"][-1]


def test_two_runs_of_two_workers_agree_to_the_bit(tmp_path):
    for name in ("first", "second"):
        topologies.train(tmp_path / name, workers=2)
    assert topologies.largest_difference(*(topologies.arrays(tmp_path / n) for n in ("first", "second"))) == 0


def test_statistics_over_groups_need_no_communication_to_be_the_same(tmp_path):
    options = ["--config.model.normalization=batch", "--config.model.group_size=12"]
    for workers in (1, 2, 4):
        topologies.train(tmp_path / str(workers), *options, workers=workers)
    one = topologies.arrays(tmp_path / "1")
    assert topologies.largest_difference(one, topologies.arrays(tmp_path / "2")) < 1e-5
    assert topologies.largest_difference(one, topologies.arrays(tmp_path / "4")) < 1e-5


def test_micro_batches_and_packs_change_nothing(one, tmp_path):
    options = ["--config.model.normalization=batch", "--config.model.group_size=12"]
    topologies.train(tmp_path / "whole", *options)
    topologies.train(tmp_path / "pieces", *options, "--config.train.micro_batches=2", workers=2)
    packs = "--config.communication.bytes_per_pack=4096"
    topologies.train(tmp_path / "packs", *options, packs, workers=2)
    whole = topologies.arrays(tmp_path / "whole")
    # Of two micro-batches the moving statistics are those of two updates, not of their mean: only weights compare.
    weights = {name for name in whole if "moving" not in name}
    for name in ("pieces", "packs"):
        other = topologies.arrays(tmp_path / name)
        chosen = weights if name == "pieces" else whole.keys()
        difference = topologies.largest_difference({n: whole[n] for n in chosen}, {n: other[n] for n in chosen})
        assert difference < 1e-5, name


def test_every_example_is_evaluated_once_on_any_number_of_workers(one):
    # 1,797 examples in batches of 60: the last batch has 57.
    right = []
    for workers in (1, 2, 3, 4):
        line = topologies.command(one, "--mode=eval", "--config.data.evaluation_split=all")
        outputs = run_all([line] * workers, topologies.environments(workers))
        result = json.loads(outputs[0].splitlines()[-1])
        assert result["num_examples"] == 1797
        right.append(result["accuracy"] * 1797)
    assert 179 < right[0] < 1797  # Better than chance, after 20 steps.
    np.testing.assert_allclose(right, round(right[0]), rtol=0, atol=1e-6)
