"""Random numbers by address: the same wherever they are asked for, and uniform and independent in every direction."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.zoo.stateless_random import beta_quantiles, uniform


def seeds_of(numbers, epoch=0, seed=0):
    """The seeds a run gives to the examples `numbers`: ((seed << 32) | epoch, example)."""
    return tf.constant([((seed << 32) | epoch, int(number)) for number in numbers], tf.int64)


def splitmix64(state, count):
    """The generator as its authors print it, in Python's integers."""
    mask = (1 << 64) - 1
    numbers = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    return numbers


def test_reference_is_splitmix64():
    # The first outputs for seed 1234567, as published with the reference implementation's tests.
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("row", [(0, 0), (5, 7), (-1, 3), ((9 << 32) | 4, 2**62)])
@pytest.mark.parametrize("draw", [0, 3])
def test_rows_are_streams_of_splitmix64(row, draw):
    mask = (1 << 64) - 1
    state = splitmix64(row[0] & mask, 1)[0]
    state = splitmix64(state ^ (row[1] & mask), 1)[0]
    state = splitmix64(state + 0x9E3779B97F4A7C15 * draw, 1)[0]
    expected = [(number >> 40) / 2**24 for number in splitmix64(state, 5)]
    np.testing.assert_array_equal(uniform(tf.constant([row], tf.int64), draw, 5)[0], np.float32(expected))


def test_numbers_do_not_depend_on_the_batch():
    seeds = seeds_of(range(1001))
    whole = uniform(seeds, 2, 37).numpy()
    for part in (slice(0, 1), slice(0, 500), slice(333, 1001), slice(1000, 1001)):
        np.testing.assert_array_equal(uniform(seeds[part], 2, 37), whole[part])
    np.testing.assert_array_equal(tf.function(uniform)(seeds, 2, 37), whole)
    np.testing.assert_array_equal(uniform(seeds, 2, 5), whole[:, :5])


def test_numbers_fill_the_unit_interval_evenly():
    values = uniform(seeds_of(range(20_000)), 0, 20).numpy().ravel()
    n = len(values)
    assert values.dtype == np.float32 and values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 1 / 2) < 4 / np.sqrt(12 * n)
    assert abs(values.var() - 1 / 12) < 4 / np.sqrt(180 * n)
    for cells in (10, 256):
        counts = np.bincount((values * cells).astype(int), minlength=cells)
        chi_square = ((counts - n / cells) ** 2 / (n / cells)).sum()
        assert abs(chi_square - (cells - 1)) < 5 * np.sqrt(2 * (cells - 1))
    low_bits = (values * 2**24).astype(np.int64) % 16
    counts = np.bincount(low_bits, minlength=16)
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 15 + 5 * np.sqrt(30)


def independent(a, b):
    """Whether two samples show neither correlation nor a pattern on a 16 x 16 grid, at five standard deviations."""
    a, b = a.ravel(), b.ravel()
    n = len(a)
    correlation = np.corrcoef(a, b)[0, 1]
    counts = np.bincount((a * 16).astype(int) * 16 + (b * 16).astype(int), minlength=256)
    chi_square = ((counts - n / 256) ** 2 / (n / 256)).sum()
    return abs(correlation) < 5 / np.sqrt(n) and abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


def test_draws_columns_examples_epochs_and_seeds_are_independent():
    ids = np.arange(30_000)
    first = uniform(seeds_of(ids), 0, 4).numpy()
    assert independent(first, uniform(seeds_of(ids), 1, 4).numpy())
    assert independent(first[:, :2], first[:, 2:])
    assert independent(first[:, :-1], first[:, 1:])
    assert independent(first[:-1], first[1:])
    assert independent(first, uniform(seeds_of(ids, epoch=1), 0, 4).numpy())
    assert independent(first, uniform(seeds_of(ids, seed=1), 0, 4).numpy())
    assert independent(first, uniform(seeds_of(ids, epoch=1), 1, 4).numpy())
    # The row is no sum: (epoch, id) and (epoch + 1, id - 1) share nothing.
    assert independent(first[1:], uniform(seeds_of(ids, epoch=1), 0, 4).numpy()[:-1])


def test_one_bit_of_the_address_changes_half_of_the_number():
    flips = [(3 ^ (1 << k), 5) for k in range(62)] + [(3, 5 ^ (1 << k)) for k in range(62)]
    values = (uniform(tf.constant([(3, 5), *flips], tf.int64), 0, 64).numpy() * 2**24).astype(np.int64)
    bits = values[..., None] >> np.arange(24) & 1
    changed = (bits[1:] != bits[0]).mean(axis=(1, 2))
    assert changed.min() > 0.42 and changed.max() < 0.58


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_beta_quantiles_are_those_of_beta(alpha):
    table = beta_quantiles(alpha, 4096)
    assert (np.diff(table) >= 0).all() and table.min() >= 0 and table.max() <= 1
    np.testing.assert_allclose(table, 1 - table[::-1], atol=1e-12)
    assert abs(table.var() - 1 / (4 * (2 * alpha + 1))) < 1e-3 / 4
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(((table - 0.5) ** 4).mean() - fourth) < 1e-4
    sample = np.sort(np.random.default_rng(0).beta(alpha, alpha, 100_000))
    # Kolmogorov and Smirnov's distance of the sample from the table, at 1e-6.
    below = table[:2048]  # Near 1, many of a small alpha's quantiles are the same float64.
    distance = np.abs(np.searchsorted(sample, below) / len(sample) - (np.arange(2048) + 0.5) / 4096).max()
    assert distance < 2.7 / np.sqrt(len(sample))


def test_beta_of_one_is_uniform():
    np.testing.assert_allclose(beta_quantiles(1.0, 1000), (np.arange(1000) + 0.5) / 1000, atol=1e-9)
    assert len(beta_quantiles(0.3, 7)) == 7 and beta_quantiles(0.3, 7)[3] == 0.5
