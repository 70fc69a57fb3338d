"""Random numbers by address: the generator that is published, the same wherever they are asked for."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.zoo.stateless_random import uniform


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


@pytest.mark.parametrize("row", [(0, 0), (5, 7), (-1, 3), ((9 << 32) | 4, 2**62)])
@pytest.mark.parametrize("draw", [0, 3])
def test_rows_are_streams_of_splitmix64(row, draw):
    # The first output for seed 1234567, as published with the reference implementation's tests.
    assert splitmix64(1234567, 1) == [6457827717110365317]
    mask = (1 << 64) - 1
    state = splitmix64(row[0] & mask, 1)[0]
    state = splitmix64(state ^ (row[1] & mask), 1)[0]
    state = splitmix64(state + 0x9E3779B97F4A7C15 * draw, 1)[0]
    expected = [(number >> 40) / 2**24 for number in splitmix64(state, 5)]
    np.testing.assert_array_equal(uniform(tf.constant([row], tf.int64), draw, 5)[0], np.float32(expected))
