"""64-bit hashes of tensors, and of a state, which is many tensors.

The hash is FarmHash, TensorFlow's op Fingerprint. It runs on the host: the op has no GPU kernel, and a save copies all
values to the host anyway.
"""

from collections.abc import Sequence

import tensorflow as tf

# The name of the hash of a state, in metrics.jsonl.
NAME = "farmhash64"


def hash_each(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Hashes each of n tensors of any shape and dtype: int64 [n]."""
    if not values:
        return tf.zeros([0], tf.int64)
    with tf.device("CPU:0"):
        row, method = tf.constant([1, -1]), tf.constant(NAME)  # Made once, for speed.
        words = [
            tf.raw_ops.Fingerprint(data=tf.raw_ops.Reshape(tensor=_numbers(value), shape=row), method=method)
            for value in values
        ]
        return tf.bitcast(tf.concat(words, axis=0), tf.int64)


def _numbers(value: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(value, 2**63 - 1) if value.dtype == tf.string else value


def combine(hashes: tf.Tensor) -> tf.Tensor:
    """Returns the hash of a state, int64 [], from the hashes of its tensors, a result of `hash_each`."""
    return hash_each([hashes])[0]


def as_text(value: int) -> str:
    """Returns a hash as 16 hexadecimal digits."""
    return f"{value & (2**64 - 1):016x}"
