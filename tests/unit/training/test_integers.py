"""Sums of integers with a power of two a tensor: exact in any order, and never saturated in silence."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step.variants import integers as integers_lib
from tfdist.training.step.variants.integers import Integers

SHARDS = 8


def make(integer=tf.int32):
    return Integers(shards=SHARDS, integer=integer)


@pytest.mark.parametrize("integer", [tf.int32, tf.int64])
def test_sums_of_all_orders_have_the_same_bits_and_are_near_those_of_floats(integer):
    rng = np.random.default_rng(0)
    parts = [rng.normal(scale=1e-3, size=1000).astype(np.float32) for _ in range(SHARDS)]
    exact = np.sum(np.stack(parts).astype(np.float64), axis=0)
    ranges = integers_lib.range_above(tf.constant([np.abs(exact).max()]))
    numbers = make(integer)
    found = []
    for order in (np.arange(SHARDS), rng.permutation(SHARDS), rng.permutation(SHARDS)):
        terms = [numbers.to_integers([tf.constant(parts[index])], ranges)[0] for index in order]
        half = SHARDS // 2
        total = sum(terms[1:half], terms[0]) + sum(terms[half + 1 :], terms[half])
        found.append(numbers.to_floats([total], ranges, tf.constant([0]))[0].numpy())
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    assert found[0].dtype == np.float32
    # Each of the terms is rounded to 2^-23 of the range: 27 bits for 8 shards, 4 of them headroom.
    step = float(ranges[0]) * 2.0 ** -(30 - 3 - 4)
    assert np.abs(found[0] - exact).max() <= SHARDS / 2 * step + np.abs(exact).max() * 2**-24
    assert len({part.tobytes() for part in (found[0], np.sum(parts, axis=0), np.sum(parts[::-1], axis=0))}) > 1


def test_the_range_is_the_power_of_two_above_and_at_least_half_of_the_last_one():
    sizes = tf.constant([0.0, 1.0, 1.5, 3e-20, 5e30], tf.float64)
    above = integers_lib.range_above(sizes).numpy()
    assert above.tolist() == [0.0, 2.0, 2.0, 2.0**-64, 2.0**102]
    sums = [tf.constant([0.0, -0.3]), tf.constant([0.1, 0.0]), tf.constant([np.nan, 1.0])]
    ranges = tf.constant([8.0, 0.0, 32.0], tf.float64)
    assert integers_lib.next_ranges(sums, ranges, tf.constant([0, 0, 1])).numpy().tolist() == [4.0, 0.125, 32.0]


def test_the_largest_batch_fits_and_a_larger_one_does_not():
    numbers, ranges = make(), tf.constant([2.0**-5], tf.float64)
    limit = 2.0**-5 * 2.0**integers_lib.HEADROOM
    for value, too_large in ((limit, False), (-limit, False), (np.nextafter(np.float32(limit), np.float32(9)), True)):
        sizes, bad = integers_lib.largest([tf.constant([value, 0.0], tf.float32)], on_cpu=True)
        assert (bool(integers_lib.exceeds(sizes, ranges)[0]), int(bad[0])) == (too_large, 0)
    (integer,) = numbers.to_integers([tf.constant([limit])], ranges)
    assert int(integer[0]) * SHARDS == 2**30  # Of all shards: below the largest int32.
    # A range of 0 is that of a tensor that was not summed yet: everything but 0 is too large.
    sizes, _ = integers_lib.largest([tf.zeros([3]), tf.constant([1e-20])], on_cpu=True)
    assert integers_lib.exceeds(sizes, tf.zeros([2], tf.float64)).numpy().tolist() == [False, True]


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_non_finite_elements_are_counted_and_make_the_sum_nan(wrong, on_cpu):
    sizes, bad = integers_lib.largest([tf.constant([1.0, wrong, 2.0]), tf.constant([3.0])], on_cpu=on_cpu)
    assert (sizes.numpy().tolist(), bad.numpy().tolist()) == ([0.0, 3.0], [1, 0])
    ranges = tf.constant([1.0, 1.0], tf.float64)
    sums = make().to_floats([tf.constant([5]), tf.constant([5])], ranges, bad)
    assert np.isnan(sums[0]) and np.isfinite(sums[1])


def test_a_nan_at_any_place_of_a_tensor_on_the_cpu_is_found():
    found = tf.function(lambda value: integers_lib.largest([value], on_cpu=True)[1][0], reduce_retracing=True)
    with tf.device("CPU:0"):
        for size in (1, 2, 7, 8, 9, 16, 33, 64, 4099):
            for place in {0, 1, 3, size // 2, size - 2, size - 1} & {*range(size)}:
                values = np.linspace(-1, 1, size).astype(np.float32)
                values[place] = np.nan
                assert int(found(tf.constant(values))) == 1, (size, place)
