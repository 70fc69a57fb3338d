"""Replicas that do not hold the same state, and workers that do not read the same, are noticed and named."""

import re

import ml_dtypes
import numpy as np
import processes
import pytest
import tensorflow as tf
import topologies
from parameters import slow_except

from tfdist.training.consistency import hashing, mismatch

HASH = r"[0-9a-f]{16}"


def test_a_state_is_hashed_variable_by_variable():
    arrays = [np.arange(7, dtype=np.float32), np.eye(2, 3, dtype=ml_dtypes.bfloat16), np.array([4])]
    arrays += [np.array([True, False]), np.array([b"a", b"bc"]), np.zeros([0], np.int8)]
    each = hashing.hash_each([tf.constant(array) for array in arrays])
    assert each.dtype == tf.int64 and each.shape == [len(arrays)]
    whole = int(hashing.combine(each))
    for place, array in enumerate(arrays[:-1]):
        others = [*arrays[:place], array[::-1] if array.size > 1 else array + 1, *arrays[place + 1 :]]
        changed = hashing.hash_each([tf.constant(other) for other in others])
        assert np.flatnonzero(changed != each).tolist() == [place]
        assert int(hashing.combine(changed)) != whole
    assert int(hashing.combine(each[::-1])) != whole
    assert hashing.as_text(-1) == "f" * 16


def test_differences_are_described():
    places = [f"worker {rank}" for rank in range(4)]
    found = np.array([[1, 7, 3], [1, 7, 4], [1, 8, 3], [1, 7, 3]])
    lines, who = mismatch.describe_mismatch(["a", "b", "c"], found, places)
    assert lines == [
        "b: 0000000000000007 on worker 0, worker 1, worker 3, 0000000000000008 on worker 2",
        "c: 0000000000000003 on worker 0, worker 2, worker 3, 0000000000000004 on worker 1",
    ]
    assert who == "worker 1, worker 2 differ from the chief"
    lines, who = mismatch.describe_mismatch(["a"], np.array([[-1], [5], [5], [5]]), places)
    assert lines == ["a: 0000000000000005 on worker 1, worker 2, worker 3, ffffffffffffffff on worker 0"]
    assert who == "worker 0 differs from most others"
    lines, _ = mismatch.describe_mismatch(
        [f"v{i}" for i in range(13)], np.stack([np.zeros(13), np.ones(13)]).astype(int), places
    )
    assert len(lines) == 11 and lines[-1] == "and 3 more"


FLIPS = "--config.objective={'target': 'tests.support.lab:flips_a_bit', 'epoch': 1, 'replica': 1}"
OFTEN = "--config.consistency.every.steps=1"


def run(workdir, *options: str, workers: int, code: int = 77) -> list[str]:
    """Runs workers that all end with `code`; returns what they say."""
    base = [
        "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
        "--config.data.prepare={'target': 'tests.support.lab:with_epoch'}",
        "--config.data.batch_size=480",
        "--config.data.evaluation_batch_size=480",
    ]
    line = topologies.command(workdir, *base, *options)
    codes, outputs = processes.run([line] * workers, topologies.environments(workers), timeout=600)
    assert codes == [code] * workers, outputs
    assert "Traceback" not in "".join(outputs), outputs
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), [(2, 1), (1, 2)])
def test_a_bit_that_differs_on_one_replica_ends_the_run_with_its_name(tmp_path, workers, devices):
    # 1,442 examples in batches of 480 are 3 steps an epoch.
    first, second = [r"worker 0 \(host \S+\)", r"worker 1 \(host \S+\)"]
    if devices == 2:
        first, second = [rf"worker 0 \(host \S+, replica {replica}\)" for replica in range(2)]
    # Neither evaluates nor exports: most of the time of so short a run.
    options = ("--config.evaluation.every.steps=none", "--config.checkpoint.export=false", OFTEN, FLIPS)
    for output in run(tmp_path, *options, f"--config.cluster.logical_devices={devices}", workers=workers):
        words = rf"step 4:\n  model/logits/kernel: {HASH} on {first}, {HASH} on {second}\n{second} .* step 3\. "
        assert len(re.findall(words, output)) == 1, output
    assert not list(tmp_path.glob("checkpoints/step-00000004"))


def test_unequal_replicas_are_never_saved(tmp_path):
    """With the default interval of comparisons, an epoch: a bit differs from step 4, and each step is saved.

    The launcher does not restart after this exit code: test_launch.py.
    """
    options = ("--config.cluster.logical_devices=2", "--config.checkpoint.every.steps=1", FLIPS)
    (output,) = run(tmp_path, *options, workers=1)
    second = r"worker 0 \(host \S+, replica 1\)"
    words = rf"  model/logits/kernel: {HASH} on .*, {HASH} on {second}\n{second} differs .* after step 3"
    assert re.search(words, output), output
    assert sorted(path.name for path in tmp_path.glob("checkpoints/step-*"))[-1] == "step-00000003"


@pytest.mark.parametrize("own_fingerprint", slow_except([True, False], [True]))
def test_workers_that_read_other_examples_end_at_the_start(tmp_path, own_fingerprint):
    source = f"--config.data.source={{'target': 'tests.support.lab:Drifting', 'own_fingerprint': {own_fingerprint}}}"
    if own_fingerprint:
        words = "fingerprint of the train split: 'digits brighter by 0' on rank 0 .*; 'digits brighter by 1' on rank 1"
    else:
        both = rf"{HASH} on worker 0 \(host \S+\), {HASH} on worker 1 \(host \S+\)\n"
        words = rf"  'image' of the evaluation split: {both}  'image' of the train split: {both}worker 1 \(host"
    for output in run(tmp_path, source, OFTEN, workers=2, code=1 if own_fingerprint else 77):
        assert re.search(words, output), output
    assert not list(tmp_path.glob("checkpoints/*"))
