"""What happens to gradients on two replicas, compared with NumPy."""

import functools
import itertools
import platform

import keras
import numpy as np
import probes
import pytest
from parameters import slow_except

from tfdist import config as c
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.updates import all_reduce

pytestmark = pytest.mark.workers
FIRST, SECOND = ([values[replica] for values in probes.DENSE] for replica in range(2))
SUMS = [first.astype(np.float64) + second for first, second in zip(FIRST, SECOND, strict=True)]
# Relative distance of neighbouring numbers.
STEP = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# The variables of lab.Table.
KEYS = ["model/table/rows/embeddings", "model/unused/kernel", "model/unused/bias"]


@pytest.mark.parametrize(("implementation", "expected"), [("nccl", 32_000_000), ("ring", 4_000_000)])
def test_the_size_of_packs_follows_the_implementation_unless_it_is_set(implementation, expected):
    assert all_reduce.with_pack_size(c.Communication(), implementation).bytes_per_pack == expected
    for chosen in (0, 4096):
        given = c.Communication(bytes_per_pack=chosen, dtype="bfloat16")
        assert all_reduce.with_pack_size(given, implementation) == given


# Each probe takes seconds of tracing: those that others resemble are slow.
QUICK = ("sums", "clipped", "lookups/bfloat16", "embedding/adam, dense")
SLOW = ("lookups/float32", "lookups/packed", "embedding/plain", "embedding/micro", "embedding/adam")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Probe -> what one process with two replicas has measured in it, and in the other quick or slow ones."""
    measure = functools.cache(lambda names: probes.measure(tmp_path_factory.mktemp("gradients"), *names, devices=2)[0])
    return lambda name: measure(SLOW if name in SLOW else QUICK)


def assert_sums(measured, place, dtype):
    """Asserts that the dense gradients were summed, and travelled in `dtype`."""
    for index, name in enumerate(("matrix", "vector", "scalar")):
        found = measured[f"{place}/{name}"]
        assert found.shape == (2, *SUMS[index].shape) and found.dtype == np.float32
        np.testing.assert_array_equal(found[0], found[1])
        # Each term is rounded once, by half a step at most, and so is their sum.
        bound = STEP[dtype] * (np.abs(FIRST[index]) + np.abs(SECOND[index])) * 1.001
        if dtype == "float16":
            bound = bound + 1.5 * 2.0**-24  # Below 6e-5 float16's steps no longer shrink.
        assert np.all(np.abs(found[0] - SUMS[index]) <= bound)
    exact = SUMS[0].astype(np.float32)
    assert (measured[f"{place}/matrix"][0] == exact).all() == (dtype == "float32")


@pytest.mark.parametrize(("dtype", "pack"), [("float32", 0), ("float32", 64), ("float16", 0), ("bfloat16", 0)])
def test_gradients_are_summed_whatever_travels(measured, dtype, pack):
    assert_sums(measured("sums"), f"sums/{dtype}/{pack}", dtype)


@pytest.mark.parametrize("name", slow_except(["float32", "packed", "bfloat16"], ["bfloat16"]))
def test_lookups_of_sparse_gradients_are_concatenated_in_the_order_of_replicas(measured, name):
    place = f"lookups/{name}"
    found = measured(place)
    assert_sums(found, place, "float32" if name == "packed" else name)
    lookups, rows = found[f"{place}/lookups"], found[f"{place}/rows"]
    # Rows of zeros are added for the first entry.
    added = ~rows[0].any(axis=1)
    assert added.any() and not lookups[:, added].any()
    # Whole numbers below 256 are exact in all three types.
    for values, part in ((lookups, 0), (rows, 1)):
        expected = np.concatenate([sparse[part] for sparse in probes.SPARSE])
        np.testing.assert_array_equal(values[:, ~added], np.stack([expected] * 2))


def test_the_norm_of_the_sum_is_clipped(measured):
    norm = np.sqrt(sum(np.sum(total**2) for total in SUMS))
    assert norm > 100
    found = measured("clipped")
    for index, total in enumerate(SUMS):
        np.testing.assert_array_equal(*found[f"clipped/0.5/{index}"])
        np.testing.assert_allclose(found[f"clipped/0.5/{index}"][0], total * (0.5 / norm), rtol=1e-6)
        np.testing.assert_allclose(found[f"clipped/1000000.0/{index}"][0], total, rtol=1e-6)


def test_float64_travels_as_it_is(measured):
    np.testing.assert_array_equal(measured("sums")["sums/float64"], [[2.0, 3 * 2.0**-40]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "micro"])
def test_sparse_and_absent_gradients_go_through_a_step(measured, name):
    found = measured(f"embedding/{name}")
    before, after = ({k: found[f"embedding/{name}/{w}/{k}"] for k in KEYS} for w in ("before", "after"))
    counts = np.bincount(probes.TOKENS[: probes.BATCH].ravel(), minlength=30)
    assert counts.min() == 0 and counts.max() > 1
    expected = before[KEYS[0]] - counts[:, np.newaxis] / probes.BATCH
    np.testing.assert_allclose(after[KEYS[0]], expected, rtol=0, atol=1e-6)
    for key in KEYS[1:]:
        np.testing.assert_array_equal(before[key], after[key])


@pytest.mark.parametrize("name", slow_except(["adam", "adam, dense"], ["adam, dense"]))
def test_adam_squares_the_row_of_each_lookup_as_keras_does(measured, name):
    """In float16 and compiled by XLA too; Keras adds the rows first if it accumulates or clips by the global norm.

    So does tfdist with `communication.sparse_as_dense`.
    """
    found = measured(f"embedding/{name}")
    before, after = (found[f"embedding/{name}/{when}/{KEYS[0]}"] for when in ("before", "after"))
    counts = np.bincount(probes.TOKENS[: probes.BATCH].ravel(), minlength=30)[:, np.newaxis]
    # The first update is the sum over the root of the sum of squares; each lookup has the same gradient.
    expected = np.broadcast_to(np.sqrt(counts) if name == "adam" else counts > 0, (30, 4))
    np.testing.assert_allclose(before - after, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """What each of two workers has measured."""
    names = ("loss_scale", "collectives", "restored", "other_data", "clipped_alike")
    return probes.measure(tmp_path_factory.mktemp("workers"), *names, workers=2)


def test_a_step_has_no_collective_but_the_sum_of_its_gradients(workers):
    for worker in workers:
        # Beside them, at the end of a call, the one that brings the sums for the log.
        assert worker["collectives/bytes per pack"] == 4_000_000
        np.testing.assert_array_equal(worker["collectives/one pack"], [1, 1])
        # 64 x 10 weights and 10 biases of 4 bytes, and the means and variances of 64 inputs, in packs of 1 kB.
        in_packs, outside = worker["collectives/packs"]
        assert in_packs > 1 and outside == 1
        # Statistics travel in float32.
        np.testing.assert_array_equal(worker["collectives/compressed"], [2, 1])


def test_an_overflow_on_one_worker_skips_the_update_on_all_and_halves_the_scale(workers):
    """Steps 1 and 2 are good, the third overflows on replica 1 alone, the others are good; growth after 4."""
    large = 2.0**15
    for worker in workers:
        found = {name: worker[f"loss_scale/{name}"] for name in ("scale", "good_steps", "kernel", "iterations")}
        np.testing.assert_array_equal(found["scale"][:, 0], [large] * 3 + [large / 2] * 4 + [large] * 2)
        np.testing.assert_array_equal(found["good_steps"][:, 0], [0, 1, 2, 0, 1, 2, 3, 0, 1])
        np.testing.assert_array_equal(found["iterations"], range(9))  # A step that is left out counts.
        moved = [not np.array_equal(old, new) for old, new in itertools.pairwise(found["kernel"])]
        assert np.isfinite(found["kernel"]).all() and moved == [True, True, False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        ({"clipnorm": 1.5}, "clip_norm"),
        ({"global_clipnorm": 2.0}, "clip_norm"),
        ({"clipvalue": 0.5}, "clip_norm"),
        ({"gradient_accumulation_steps": 4}, "micro_batches"),
        ({"loss_scale_factor": 8.0}, "precision"),
        ({"use_ema": True, "ema_overwrite_frequency": 10}, "remove it"),
    ],
)
def test_an_optimizer_that_does_it_itself_is_refused(arguments, instead):
    name, value = [*arguments.items()][-1]
    with pytest.raises(ValueError, match=rf"config\.optimizer\.{name}={value} .*{instead}"):
        optimizer_lib.check_optimizer(keras.optimizers.SGD(**arguments))
    optimizer_lib.check_optimizer(keras.optimizers.SGD(momentum=0.9, weight_decay=1e-4))
    with pytest.raises(ValueError, match=r'config\.train\.precision="float16"'):
        optimizer_lib.check_optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_the_chief_alone_reads_a_checkpoint_and_the_others_hold_its_bits(workers):
    chief, other = workers
    # For the hash, for the variables and for the callbacks.
    assert chief["restored/reads"] == 3 and other["restored/reads"] == 0
    for worker in workers:
        assert worker["restored/state"].tolist() == [7.0, np.inf, 10.0]
        assert worker["restored/kernel"].flat[:2].tolist() == [0x80000000, 0x7FC00001]
    np.testing.assert_array_equal(chief["restored/kernel"], other["restored/kernel"])


def test_other_data_are_named_by_column_and_by_size_or_content(workers):
    chief, other = ({name: str(text) for name, text in worker.items() if "other_data/" in name} for worker in workers)
    assert set(chief.values()) == {""}
    said = {name.removeprefix("other_data/"): text.partition(". All workers")[0] for name, text in other.items()}
    for name, words in {
        **dict.fromkeys(("same", "strings", "last bits"), ""),
        "content": "column y has the same size",
        "floats": "column x['b'] has the same size",
        "size": "column x['age'] differs in size: float32 [16, 2] here, float32 [16, 3] there",
        "examples": "19 examples, 5 steps of 4 examples here, 20 examples, 5 steps of 4 examples there",
    }.items():
        assert words in said[name] and bool(said[name]) == bool(words)


def test_workers_with_different_numbers_of_threads_clip_to_the_same_bits(workers):
    (kernel,) = (name for name in workers[0] if name.startswith("clipped_alike/"))
    assert workers[0][kernel].size == 2**20
    np.testing.assert_array_equal(*(worker[kernel].view(np.uint32) for worker in workers))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the workers need instructions of two kinds")
def test_workers_with_unlike_processors_hold_the_same_weights_with_muon(tmp_path):
    first, second = probes.measure(tmp_path, "muon", workers=2, unlike=True)
    # Alone, they multiply the same matrices to other bits.
    alone = [worker.pop("muon/alone") for worker in (first, second)]
    assert 0 < np.abs(np.subtract(*alone)).max() < 1e-3
    assert sum(array.ndim == 4 for array in first.values()) == 4 and first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name
