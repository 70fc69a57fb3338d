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


def hashed(array: np.ndarray) -> int:
    return int(hashing.hash_tensor(tf.constant(array)))


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int8, np.uint8]
)
@pytest.mark.parametrize("size", [1, 7, 2500])
def test_each_bit_counts(dtype, size):
    rng = np.random.default_rng(size)
    array = (40 * rng.standard_normal(size)).astype(dtype)
    seen = {hashed(array)}
    assert seen == {hashed(array.copy())}
    changed = rng.choice(8 * array.nbytes, min(8, 8 * array.nbytes), replace=False)
    for bit in changed:
        other = array.copy()
        other.view(np.uint8)[bit // 8] ^= 1 << bit % 8
        seen.add(hashed(other))
    assert len(seen) == 1 + len(changed)


def test_places_and_pairs_of_signs_count():
    array = np.random.default_rng(0).standard_normal((40, 100)).astype(np.float32)
    seen = {hashed(array), hashed(np.roll(array, 1)), hashed(array[::-1])}
    for first, second in ((0, 1), (0, 2048), (17, 3999), (1000, 1001)):
        other = array.copy()
        other.ravel()[[first, second]] *= -1
        seen.add(hashed(other))
        other.ravel()[[first, second]] = array.ravel()[[second, first]]
        seen.add(hashed(other))
    assert len(seen) == 11


def test_truth_values_and_texts_are_hashed():
    assert hashed(np.array([True, False])) != hashed(np.array([False, True]))
    assert hashed(np.array([b"a", b"bc"])) != hashed(np.array([b"ab", b"c"]))
    assert hashed(np.zeros([0], np.float32)) == 0


def test_hashes_are_those_of_earlier_releases():
    assert hashing.as_text(hashed(np.arange(2500, dtype=np.float32))) == "7f2a21da6c7e54cd"


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
def test_large_variables_are_hashed_in_slices_of_which_each_bit_counts(monkeypatch, dtype):
    monkeypatch.setattr(hashing, "_SLICE", 128)
    array = np.random.default_rng(0).integers(0, 2, 1001).astype(dtype)
    seen = {hashed(array), hashed(np.roll(array, 32))}
    for place in (0, 127, 128, 999, 1000):
        other = array.copy()
        other[place] = not other[place]
        seen.add(hashed(other))
    assert len(seen) == 7


@pytest.mark.parametrize("device_type", ["CPU", "GPU"])
def test_a_state_is_hashed_variable_by_variable(device_type):
    arrays = [np.arange(7, dtype=np.float32), np.eye(2, 3, dtype=ml_dtypes.bfloat16), np.array([4])]
    arrays += [np.array([True, False]), np.array([b"a", b"bc"]), np.zeros([0], np.int8)]
    each = hashing.hash_each([tf.constant(array) for array in arrays], device_type)
    assert each.dtype == tf.int64 and each.shape == [len(arrays)]
    whole = int(hashing.combine(each, device_type))
    for place, array in enumerate(arrays[:-1]):
        others = [*arrays[:place], array[::-1] if array.size > 1 else array + 1, *arrays[place + 1 :]]
        changed = hashing.hash_each([tf.constant(other) for other in others], device_type)
        assert np.flatnonzero(changed != each).tolist() == [place]
        assert int(hashing.combine(changed, device_type)) != whole
    assert int(hashing.combine(each[::-1], device_type)) != whole
    assert hashing.as_text(-1) == "f" * 16


def test_tensors_of_one_size_are_hashed_together_without_loops(monkeypatch):
    monkeypatch.setattr(hashing, "_SLICE", 20_000)  # Two of the largest.
    rng = np.random.default_rng(0)
    shapes = [(40, 50), (2000,), (5,), (1030, 1), (5,), (2000,), (), (0,), (5,)]
    values = [tf.constant(rng.standard_normal(shape), tf.float32) for shape in shapes]
    function = tf.function(lambda: hashing.hash_each(values, "GPU"), autograph=False).get_concrete_function()
    assert not [op.type for op in function.graph.get_operations() if "While" in op.type]
    assert function().numpy().tolist() == [int(hashing.hash_tensor(value)) for value in values]
    unknown = tf.function(hashing.hash_tensor, input_signature=[tf.TensorSpec(None, tf.float32)])
    assert function().numpy().tolist() == [int(unknown(value)) for value in values]


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


# Neither evaluates nor exports: most of the time of so short a run.
TRAINS_ONLY = ("--config.evaluation.every.steps=none", "--config.checkpoint.export=false")


def run(workdir, *options: str, workers: int, code: int = 77) -> list[str]:
    """Runs workers that all end with `code`; returns what they say."""
    base = [
        "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
        "--config.data.prepare={'target': 'tests.support.lab:with_epoch'}",
        "--config.data.batch_size=480",
        "--config.data.evaluation_batch_size=480",
        "--config.consistency.every.steps=1",
    ]
    line = topologies.command(workdir, *base, *options)
    codes, outputs = processes.run([line] * workers, topologies.environments(workers), timeout=600)
    assert codes == [code] * workers, outputs
    assert "Traceback" not in "".join(outputs), outputs
    return outputs


@pytest.mark.parametrize(("workers", "devices"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_bit_that_differs_on_one_replica_ends_the_run_with_its_name(tmp_path, workers, devices):
    # 1,442 examples in batches of 480 are 3 steps an epoch.
    flip = "--config.objective={'target': 'tests.support.lab:flips_a_bit', 'epoch': 1, 'replica': 1}"
    first, second = [r"worker 0 \(host \S+\)", r"worker 1 \(host \S+\)"]
    if devices == 2:
        first, second = [rf"worker 0 \(host \S+, replica {replica}\)" for replica in range(2)]
    options = (*TRAINS_ONLY, f"--config.cluster.logical_devices={devices}")
    for output in run(tmp_path, flip, *options, workers=workers):
        words = (
            r"The replicas do not hold the same state after step 4:\n"
            rf"  model/logits/kernel: {HASH} on {first}, {HASH} on {second}\n"
            rf"{second} differs from the chief\. They were last equal after step 3\. .* "
            r"All checkpoints were compared before they were saved"
        )
        assert len(re.findall(words, output)) == 1, output
    assert not list(tmp_path.glob("checkpoints/step-00000004"))


def test_unequal_replicas_are_never_saved(tmp_path):
    """With the default interval of comparisons, an epoch: a bit differs from step 4, and each step is saved.

    The launcher does not restart after this exit code: test_launch.py.
    """
    flip = "--config.objective={'target': 'tests.support.lab:flips_a_bit', 'epoch': 1, 'replica': 1}"
    command = topologies.command(
        tmp_path,
        "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
        "--config.data.prepare={'target': 'tests.support.lab:with_epoch'}",
        *("--config.data.batch_size=480", "--config.data.evaluation_batch_size=480"),
        *("--config.cluster.logical_devices=2", "--config.checkpoint.every.steps=1", flip),
    )
    (code,), (output,) = processes.run([command], topologies.environments(1), timeout=300)
    assert code == 77 and "last equal after step 3" in output, output
    assert sorted(path.name for path in tmp_path.glob("checkpoints/step-*"))[-1] == "step-00000003"


@pytest.mark.parametrize("own_fingerprint", slow_except([True, False], [True]))
def test_workers_that_read_other_examples_end_at_the_start(tmp_path, own_fingerprint):
    source = f"--config.data.source={{'target': 'tests.support.lab:Drifting', 'own_fingerprint': {own_fingerprint}}}"
    if own_fingerprint:
        words = "fingerprint of the train split: 'digits brighter by 0' on rank 0 .*; 'digits brighter by 1' on rank 1"
    else:
        both = rf"{HASH} on worker 0 \(host \S+\), {HASH} on worker 1 \(host \S+\)\n"
        words = (
            rf"The workers do not read the same data:\n  'image' of the evaluation split: {both}"
            rf"  'image' of the train split: {both}worker 1 \(host \S+\) differs from the chief\. 16 examples"
        )
    for output in run(tmp_path, source, workers=2, code=1 if own_fingerprint else 77):
        assert re.search(words, output), output
    assert not list(tmp_path.glob("checkpoints/*"))
