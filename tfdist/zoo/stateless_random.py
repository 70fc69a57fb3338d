"""Random numbers that are looked up by address, not drawn in turn."""

import numpy as np
import tensorflow as tf

# Constants of SplitMix64: the odd integer nearest to 2**64 / golden ratio, and the two multipliers of its finaliser.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def uniform(seeds: tf.Tensor, draw: int, count: int) -> tf.Tensor:
    """Returns uniform numbers for every row of `seeds`, all rows at once.

    Number `[i, j]` is a hash of `(seeds[i], draw, j)` and of nothing else: it is the same in any batch, at any
    position in it, on any topology. Row i is the stream of a SplitMix64 generator (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014) whose state is the hash of `(seeds[i], draw)`.

    Args:
        seeds: int64 [n, 2], for example a prepare function's `seeds`.
        draw: which of a row's independent streams; every use of randomness on a row takes one of its own.
        count: numbers per row.

    Returns:
        float32 [n, count] in [0, 1), multiples of 2**-24.
    """
    words = tf.bitcast(seeds, tf.uint64)
    state = _mix(words[:, 0] + _uint64(_GAMMA))
    state = _mix((state ^ words[:, 1]) + _uint64(_GAMMA))
    state = _mix(state + _uint64(_GAMMA * (draw + 1)))
    columns = tf.cast(tf.range(1, count + 1), tf.uint64) * _uint64(_GAMMA)
    hashed = _mix(state[:, tf.newaxis] + columns)
    # A float32 holds 24 bits: int32 in between because uint64 to float32 would round up to 1.0.
    bits = tf.cast(tf.bitwise.right_shift(hashed, _uint64(40)), tf.int32)
    return tf.cast(bits, tf.float32) * (1.0 / (1 << 24))


def beta_quantiles(alpha: float, count: int) -> np.ndarray:
    """Returns the (i + 1/2) / count quantiles of Beta(alpha, alpha), float64 [count], rising and symmetric about 1/2.

    A table instead of a sampler: every pair looks up its share, and rejection or vectorised powers, whose last bit
    depends on the place in the vector, stay out of the batch. The density's pole at 0 for alpha < 1 goes with
    x = t**(1 / alpha), which turns the integral of x**(alpha - 1) (1 - x)**(alpha - 1) into a smooth one.
    """
    t = np.linspace(0.0, 0.5**alpha, 1 << 16)
    density = (1.0 - t ** (1.0 / alpha)) ** (alpha - 1.0)
    distribution = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    probabilities = (np.arange(count // 2) + 0.5) / count
    lower = np.interp(probabilities, 0.5 * distribution / distribution[-1], t) ** (1.0 / alpha)
    middle = [0.5] if count % 2 else []
    return np.concatenate([lower, middle, 1.0 - lower[::-1]])


def _mix(z: tf.Tensor) -> tf.Tensor:
    z = (z ^ tf.bitwise.right_shift(z, _uint64(30))) * _uint64(_MULTIPLIER_1)
    z = (z ^ tf.bitwise.right_shift(z, _uint64(27))) * _uint64(_MULTIPLIER_2)
    return z ^ tf.bitwise.right_shift(z, _uint64(31))


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value % (1 << 64), tf.uint64)
