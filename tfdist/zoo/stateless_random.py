"""Stateless random numbers: each is a hash of a seed, a stream and a position."""

import tensorflow as tf

# Constants of SplitMix64: the odd integer nearest to 2**64 / golden ratio, and the two multipliers of its finaliser.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def uniform(seeds: tf.Tensor, stream: int, count: int) -> tf.Tensor:
    """Returns uniform numbers for every row of `seeds`, all rows at once.

    Number `[i, j]` is a hash of `(seeds[i], stream, j)` only: it is the same in any batch, at any position in the
    batch, on any number of replicas. Row i is the output of a SplitMix64 generator (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014) whose state is the hash of `(seeds[i], stream)`.

    Args:
        seeds: int64 [n, 2], for example a prepare function's `seeds`.
        stream: an integer of your choice; each use of random numbers needs a different one.
        count: numbers per row.

    Returns:
        float32 [n, count] in [0, 1), multiples of 2**-24.
    """
    words = tf.bitcast(seeds, tf.uint64)
    state = _mix(words[:, 0] + _uint64(_GAMMA))
    state = _mix((state ^ words[:, 1]) + _uint64(_GAMMA))
    state = _mix(state + _uint64(_GAMMA * (stream + 1)))
    columns = tf.cast(tf.range(1, count + 1), tf.uint64) * _uint64(_GAMMA)
    hashed = _mix(state[:, tf.newaxis] + columns)
    # The upper 24 bits, the precision of float32. By way of int32: uint64 to float32 would round up to 1.0.
    bits = tf.cast(tf.bitwise.right_shift(hashed, _uint64(40)), tf.int32)
    return tf.cast(bits, tf.float32) * (1.0 / (1 << 24))


def _mix(z: tf.Tensor) -> tf.Tensor:
    z = (z ^ tf.bitwise.right_shift(z, _uint64(30))) * _uint64(_MULTIPLIER_1)
    z = (z ^ tf.bitwise.right_shift(z, _uint64(27))) * _uint64(_MULTIPLIER_2)
    return z ^ tf.bitwise.right_shift(z, _uint64(31))


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value % (1 << 64), tf.uint64)
