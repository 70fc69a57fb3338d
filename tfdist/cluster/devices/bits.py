"""Converts values of any dtype to the few dtypes that collectives support, and back."""

import tensorflow as tf

# All collectives support these dtypes on all devices, including NCCL. bfloat16 has only a sum, and none with NCCL.
DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Size of a number in bytes -> the integer dtype for its bits.
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


def to_bits(value: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `value` (bools, or numbers of any dtype but float8) as int32 or int64; `DTYPES` as they are.

    The result has the shape of `value`; for complex128 it has one more dimension, [..., 2].
    """
    if value.dtype in DTYPES:
        return value
    if value.dtype == tf.bool:
        return tf.cast(value, tf.int32)
    bits = tf.bitcast(value, _INTEGERS[value.dtype.size])
    return tf.cast(bits, tf.int32) if bits.dtype.size < 4 else bits


def from_bits(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `to_bits` of a value of `dtype`."""
    if bits.dtype == dtype:
        return bits
    if dtype == tf.bool:
        return tf.cast(bits, dtype)
    return tf.bitcast(tf.cast(bits, _INTEGERS[dtype.size]), dtype)
