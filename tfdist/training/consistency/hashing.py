"""Hashes of tensors: 8 bytes each, and 8 bytes of a state, which is many of them.

`hash_tensor` is computed on the device that holds the tensor. It depends on every bit and its position: a difference in
one element is always found, any other with a probability of about 1 - 2**-60. A state on a CPU is hashed by FarmHash
(TensorFlow's op Fingerprint), which takes a tenth of the time and has no kernel for GPUs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# Words that one round hashes to one.
_ROW = 1024
# Words of a slice (32 MB): large tensors are hashed in slices, for small copies.
_TOGETHER = 1 << 22


def _odd_numbers(salt: int) -> np.ndarray:
    """Returns pseudo-random odd numbers, int64 [_ROW], by SplitMix64: independent of the versions of libraries."""
    state = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) | np.uint64(1)).view(np.int64)


_FIRST, _SECOND = _odd_numbers(1), _odd_numbers(2)


def as_int64_words(value: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `value`, of any shape and dtype, as int64 [n], padded with zeros; strings are hashed."""
    if value.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(tf.reshape(value, [-1]), 2**63 - 1)
    value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
    together = 8 // value.dtype.size
    if together <= 1:
        return tf.reshape(tf.bitcast(value, tf.int64), [-1])
    # If the size is known, and a multiple: two operations instead of a dozen, for hundreds of variables.
    size = value.shape.num_elements()
    missing = -(tf.size(value) if size is None else size) % together
    if size is None or missing:
        value = tf.pad(tf.reshape(value, [-1]), [[0, missing]])
    return tf.bitcast(tf.reshape(value, [-1, together]), tf.int64)


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
def hash_words(numbers: tf.Tensor) -> tf.Tensor:
    """Hashes int64 [n] to int64 []."""

    def shorten(numbers: tf.Tensor) -> list[tf.Tensor]:
        full = tf.size(numbers) // _ROW * _ROW
        rest = tf.pad(numbers[full:], [[0, -tf.size(numbers) % _ROW]])
        return [tf.concat([_rows(numbers[:full]), _rows(rest)], axis=0)]

    invariants = [tf.TensorShape([None])]
    return tf.reduce_sum(tf.while_loop(lambda n: tf.size(n) > 1, shorten, [numbers], shape_invariants=invariants)[0])


def _rows(numbers: tf.Tensor) -> tf.Tensor:
    # Sums modulo 2**64 do not depend on the order. Odd factors keep every bit. The shift mixes high bits into low ones:
    # otherwise two changed signs would cancel.
    rows = tf.reshape(numbers, [-1, _ROW]) * tf.constant(_FIRST)
    rows = tf.bitwise.bitwise_xor(rows, tf.bitwise.right_shift(rows, tf.constant(32, tf.int64)))
    return tf.reduce_sum(rows * tf.constant(_SECOND), axis=1)


def hash_tensor(value: tf.Tensor) -> tf.Tensor:
    """Hashes a tensor of any shape and dtype, in slices if it is large: int64 []."""
    size = value.shape.num_elements()
    length = _TOGETHER * 8 // max(value.dtype.size, 1)
    if size is None or size <= length:
        return hash_words(as_int64_words(value))
    flat = tf.reshape(value, [-1])

    def hash_slice(index: tf.Tensor, hashes: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        words = as_int64_words(flat[index * length : tf.minimum((index + 1) * length, size)])
        return index + 1, hashes.write(tf.cast(index, tf.int32), hash_words(words))

    count = -(-size // length)
    # One slice after another: each needs a copy. int64: a tensor may have more than 2**31 elements.
    first = (tf.zeros([], tf.int64), tf.TensorArray(tf.int64, count, element_shape=[]))
    _, hashes = tf.while_loop(lambda index, _: index < count, hash_slice, first, parallel_iterations=1)
    return hash_words(hashes.stack())


def _fingerprint(value: tf.Tensor) -> tf.Tensor:
    """Hashes a tensor of any shape and dtype but strings by FarmHash, on the host: int64 []."""
    words = tf.raw_ops.Fingerprint(data=tf.reshape(value, [1, -1]), method=b"farmhash64")
    return tf.bitcast(words, tf.int64)[0]


# The type of the replicas' devices -> the name of the hash of a state there.
HASH_NAMES = {"CPU": "farmhash64", "GPU": "multiply64"}
_HASHES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {"farmhash64": _fingerprint, "multiply64": hash_tensor}


def hash_each(values: Sequence[tf.Tensor], device_type: str) -> tf.Tensor:
    """Hashes each of n tensors on a device of a type, "CPU" or "GPU": int64 [n]."""
    function = _HASHES[HASH_NAMES[device_type]]
    return tf.stack([hash_tensor(value) if value.dtype == tf.string else function(value) for value in values])


def combine(hashes: tf.Tensor, device_type: str) -> tf.Tensor:
    """Returns the hash of a state, int64 [], from those of its tensors, the result of `hash_each`."""
    return _HASHES[HASH_NAMES[device_type]](hashes)


def as_text(value: int) -> str:
    """Returns a hash as 16 hexadecimal digits."""
    return f"{value & (2**64 - 1):016x}"
