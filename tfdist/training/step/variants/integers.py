"""Tensors as integers with one power-of-two scale per tensor: a sum of integers has the same bits in any order.

An element x of a tensor with the range r, a power of two, becomes the integer round(x * 2^(bits - 4) / r). r is the
power of two above the largest element of the last step's sum, so choosing it needs no communication. A shard's elements
may be 2^4 times as large. 2^bits times the number of shards is at most 2^30: no sum of int32 overflows. If an element
of any shard is larger, all replicas learn this from the same sum, and repeat the step with a larger range.

Integers with a scale from the previous step are an idea of SwitchML (arXiv 1903.06701) and IntSGD (2102.08374).
"""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

# Bits of headroom for elements that are larger than those of the last step's sum.
HEADROOM = 4
# The smallest range, for tensors that are 0.
_SMALLEST = 2.0**-100
# Bits of the sums over all shards.
_BITS = 30
# Mask of the exponent of float64.
_EXPONENT = 0x7FF0000000000000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """How a list of float32 tensors is converted to integers."""

    # Shards whose integers are added.
    shards: int
    # int32 or int64.
    integer: tf.DType

    def scales(self, ranges: tf.Tensor) -> tf.Tensor:
        """Returns the factors, powers of two, of tensors with `ranges`: float64 [tensors] both."""
        bits = _BITS - math.ceil(math.log2(self.shards)) - HEADROOM
        return tf.constant(2.0**bits, tf.float64) / tf.maximum(ranges, _SMALLEST)

    def to_integers(self, values: Sequence[tf.Tensor], ranges: tf.Tensor) -> list[tf.Tensor]:
        """Returns `values` as integers, which are valid only if `exceeds` is False for their largest elements."""
        scales = tf.unstack(tf.cast(self.scales(ranges), tf.float32), len(values))
        return [tf.cast(tf.round(value * scale), self.integer) for value, scale in zip(values, scales, strict=True)]

    def to_floats(self, sums: Sequence[tf.Tensor], ranges: tf.Tensor, bad: tf.Tensor) -> list[tf.Tensor]:
        """Returns sums of integers as floats; NaN for a tensor whose count in `bad`, int [tensors], is above 0."""
        factors = tf.cast(tf.where(bad > 0, tf.constant(math.nan, tf.float64), 1 / self.scales(ranges)), tf.float32)
        return [
            tf.cast(total, tf.float32) * factor
            for total, factor in zip(sums, tf.unstack(factors, len(sums)), strict=True)
        ]


def largest(values: Sequence[tf.Tensor], *, on_cpu: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the largest absolute element of each tensor, float64 [tensors], and whether one is non-finite, int32.

    The largest element of a tensor that has a non-finite one is returned as 0.

    Args:
        on_cpu: whether the tensors are on a CPU, where the maximum is NaN if an element is NaN.
    """
    sizes = _sizes(values)
    finite = tf.math.is_finite(sizes)
    if not on_cpu:
        products = [tf.reduce_sum(value * tf.zeros([], value.dtype)) for value in values]
        finite &= tf.math.is_finite(tf.stack([tf.cast(one, tf.float64) for one in products]))
    return tf.where(finite, sizes, tf.zeros_like(sizes)), tf.cast(~finite, tf.int32)


def _sizes(values: Sequence[tf.Tensor]) -> tf.Tensor:
    # A maximum and a minimum read a tensor twice; its absolute values would also be written.
    pairs = [tf.stack([tf.reduce_max(value), -tf.reduce_min(value)]) for value in values]
    return tf.reduce_max(tf.stack([tf.cast(pair, tf.float64) for pair in pairs]), axis=1)


def exceeds(sizes: tf.Tensor, ranges: tf.Tensor) -> tf.Tensor:
    """Returns whether elements of these `sizes` are too large for `ranges`: bool [tensors]."""
    return sizes > 2.0**HEADROOM * tf.maximum(ranges, _SMALLEST)


def range_above(sizes: tf.Tensor) -> tf.Tensor:
    """Returns the power of two above each of `sizes`, float64 [tensors]; 0 for 0."""
    return 2.0 * tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(sizes, tf.int64), _EXPONENT), tf.float64)


def next_ranges(sums: Sequence[tf.Tensor], ranges: tf.Tensor, bad: tf.Tensor) -> tf.Tensor:
    """Returns the next step's ranges, given this step's sums: at least half of `ranges`, so that few overflow.

    Args:
        bad: as for `Integers.to_floats`: these sums are NaN.
    """
    return tf.where(bad > 0, ranges, tf.maximum(range_above(_sizes(sums)), ranges / 2.0))
