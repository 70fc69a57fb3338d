"""The dtypes of TensorFlow's collectives, and other values as tensors of these dtypes."""

from typing import Any

import tensorflow as tf

# All collectives support these, on all devices and with NCCL. For bfloat16 there is only a sum, and not with NCCL.
DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Bytes of a number -> the integers that have its bits.
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


def to_bits(value: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `value` (bools, or numbers of any dtype but float8) as int32 or int64; `DTYPES` as they are.

    The shape is that of `value`; of complex128, [..., 2].
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


def to_codes(texts: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of strings [...] of at most `width` bytes, padded with zeros: int32 [..., width]."""
    return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=width), tf.int32)


def from_codes(codes: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Inverts `to_codes` of strings of `lengths` bytes."""
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
    return tf.strings.substr(tf.strings.reduce_join(letters, axis=-1), tf.zeros_like(lengths), lengths)


def gather(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    """Concatenates the replicas' values [n, ...], in replica order; `n` may differ. Collective.

    Args:
        value: numbers of any dtype but float8, bools or strings; on one replica, anything.
    """
    if strategy.num_replicas_in_sync == 1:
        return strategy.gather(value, axis=0)
    dtype = strategy.experimental_local_results(value)[0].dtype
    if dtype == tf.string:
        lengths = strategy.gather(strategy.run(tf.strings.length, args=(value,)), axis=0)
        width = tf.maximum(tf.reduce_max(lengths), 1)
        codes = strategy.run(to_codes, args=(value, width))
        return from_codes(strategy.gather(codes, axis=0), lengths)
    return from_bits(strategy.gather(strategy.run(to_bits, args=(value,)), axis=0), dtype)
