"""Sums of floats that have the same bits in any order: each number is cut into three, on grids of their own.

float64 adds multiples of 2^g exactly up to 2^(g + 53). A number is the sum of a multiple of 2^16, of one of 2^-14 up to
2^15, and of one of 2^-44 up to 2^-15; what is left, below 2^-45, is dropped. So 2^24 numbers below 2^45 add up exactly.
These are the bins of Demmel and Nguyen (Parallel Reproducible Summation, IEEE Transactions on Computers, 2015), fixed.
"""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

_GRIDS = (2.0**16, 2.0**-14, 2.0**-44)
# What is added to the name of a value, for the sums of its parts.
_ENDS = ("", " (second part)", " (third part)")


def names_of_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the sums that `cut` makes of the sums with `names`."""
    return tuple(f"{name}{end}" for end in _ENDS for name in names)


def cut(sums: tf.Tensor) -> tf.Tensor:
    """Cuts sums, float64 [k + 1], into parts, float64 [3 * k + 1]. The last element of both is the number of examples.

    The first part of a non-finite number is itself.
    """
    rest, parts = sums[:-1], []
    for grid in _GRIDS:
        parts.append(tf.where(tf.math.is_finite(rest), tf.round(rest / grid) * grid, rest))
        rest = tf.where(tf.math.is_finite(rest), rest - parts[-1], tf.zeros_like(rest))
    return tf.concat([*parts, sums[-1:]], axis=0)


def put_together(totals: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Returns totals by name, in which the values with `names` are the sums of their parts."""
    first, *others = _ENDS
    sums = {name: totals[f"{name}{first}"] + math.fsum(totals[f"{name}{end}"] for end in others) for name in names}
    left_out = {f"{name}{end}" for name in names for end in others}
    return {name: value for name, value in totals.items() if name not in left_out} | sums
