"""Hashes of tensors: 8 bytes each, and 8 bytes of a state, which is many of them.

`hash_tensor` is computed on the device that holds the tensor. It depends on every bit and its position: a difference in
one element is always found, any other with a probability of about 1 - 2**-60. A state on a CPU is hashed by FarmHash
(TensorFlow's op Fingerprint), which takes a tenth of the time and has no kernel for GPUs.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Words that one round hashes to one.
_ROW = 1024
# Bytes of a slice: large tensors are hashed in slices, for small copies, and small ones together in one.
_SLICE = 1 << 25


def _odd_numbers(salt: int) -> np.ndarray:
    """Returns pseudo-random odd numbers, int64 [_ROW], by SplitMix64: independent of the versions of libraries."""
    state = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) | np.uint64(1)).view(np.int64)


_FIRST, _SECOND = _odd_numbers(1), _odd_numbers(2)


def _row_words(rows: tf.Tensor) -> tf.Tensor:
    """Returns the bits of each row: [k, n] of any dtype -> int64 [k, words], padded with zeros; strings are hashed."""
    if rows.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(rows, 2**63 - 1)
    rows = tf.cast(rows, tf.uint8) if rows.dtype == tf.bool else rows
    together = 8 // rows.dtype.size
    if together <= 1:
        return tf.reshape(tf.bitcast(rows, tf.int64), [rows.shape[0], -1])
    return tf.bitcast(tf.reshape(_pad(rows, together), [rows.shape[0], -1, together]), tf.int64)


def _pad(rows: tf.Tensor, multiple: int) -> tf.Tensor:
    """Appends zeros to each row of [k, n], up to a multiple."""
    size = rows.shape[1]
    missing = -(tf.shape(rows)[1] if size is None else size) % multiple
    return rows if size is not None and not missing else tf.pad(rows, [[0, 0], [0, missing]])


def _hash_rows(rows: tf.Tensor) -> tf.Tensor:
    """Hashes each row: [k, n] of any dtype -> int64 [k]."""
    words = _row_words(rows)
    if words.shape[1] is None:
        invariants = [tf.TensorShape([words.shape[0], None])]
        words = tf.while_loop(
            lambda w: tf.shape(w)[1] > 1, lambda w: [_shorten(w)], [words], shape_invariants=invariants
        )[0]
    else:  # Without a loop: TensorFlow optimises a graph with hundreds of loops for 20 s.
        while words.shape[1] > 1:
            words = _shorten(words)
    return tf.reduce_sum(words, axis=1)


def _shorten(words: tf.Tensor) -> tf.Tensor:
    """Hashes each _ROW words of a row to one."""
    # Sums modulo 2**64 do not depend on the order. Odd factors keep every bit. The shift mixes high bits into low ones:
    # otherwise two changed signs would cancel.
    rows = tf.reshape(_pad(words, _ROW), [words.shape[0], -1, _ROW]) * tf.constant(_FIRST)
    rows = tf.bitwise.bitwise_xor(rows, tf.bitwise.right_shift(rows, tf.constant(32, tf.int64)))
    return tf.reduce_sum(rows * tf.constant(_SECOND), axis=2)


def hash_tensor(value: tf.Tensor) -> tf.Tensor:
    """Hashes a tensor of any shape and dtype, in slices if it is large: int64 []."""
    size = value.shape.num_elements()
    length = _SLICE // max(value.dtype.size, 1)
    if size is None or size <= length:
        return _hash_rows(tf.reshape(value, [1, -1]))[0]
    flat = tf.reshape(value, [-1])

    def append(index: tf.Tensor, hashes: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        one = _hash_rows(tf.slice(flat, [index * length], [length])[tf.newaxis])
        return index + 1, hashes.write(tf.cast(index, tf.int32), one[0])

    count, rest = divmod(size, length)
    # One slice after another: each needs a copy. int64: a tensor may have more than 2**31 elements.
    first = (tf.zeros([], tf.int64), tf.TensorArray(tf.int64, count, element_shape=[]))
    _, hashes = tf.while_loop(lambda index, _: index < count, append, first, parallel_iterations=1)
    last = [_hash_rows(tf.slice(flat, [tf.constant(size - rest, tf.int64)], [rest])[tf.newaxis])] if rest else []
    return _hash_rows(tf.concat([hashes.stack(), *last], axis=0)[tf.newaxis])[0]


def _hash_groups(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Hashes each of n tensors, those of one size and dtype together, so that the graph of a state is short: int64 [n].

    A group is one copy, of at most a slice.
    """
    places: dict[Any, list[int]] = collections.defaultdict(list)
    for place, value in enumerate(values):
        size = value.shape.num_elements()
        places[place if size is None else (value.dtype, size)].append(place)
    order, hashes = [], []
    for same in places.values():
        first = values[same[0]]
        num_bytes = (first.shape.num_elements() or 1) * max(first.dtype.size, 1)
        together = max(1, _SLICE // num_bytes)
        for start in range(0, len(same), together):
            group = same[start : start + together]
            rows = [tf.reshape(values[place], [-1]) for place in group]
            hashes += [_hash_rows(tf.stack(rows))] if len(rows) > 1 else [hash_tensor(rows[0])[tf.newaxis]]
            order += group
    return tf.gather(tf.concat(hashes, axis=0), np.argsort(order))


def _fingerprints(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Hashes each of n tensors by FarmHash, on the host, but strings as `hash_tensor`: int64 [n]."""
    row, method = tf.constant([1, -1]), tf.constant("farmhash64")  # Once, which takes a seventh of the time.
    words = [
        tf.bitcast(hash_tensor(value)[tf.newaxis], tf.uint8)
        if value.dtype == tf.string
        else tf.raw_ops.Fingerprint(data=tf.raw_ops.Reshape(tensor=value, shape=row), method=method)
        for value in values
    ]
    return tf.bitcast(tf.concat(words, axis=0), tf.int64)


# The type of the replicas' devices -> the name of the hash of a state there.
HASH_NAMES = {"CPU": "farmhash64", "GPU": "multiply64"}
_HASHES: dict[str, Callable[[Sequence[tf.Tensor]], tf.Tensor]] = {"CPU": _fingerprints, "GPU": _hash_groups}


def hash_each(values: Sequence[tf.Tensor], device_type: str) -> tf.Tensor:
    """Hashes each of n tensors on a device of a type, "CPU" or "GPU": int64 [n]."""
    return _HASHES[device_type](values)


def combine(hashes: tf.Tensor, device_type: str) -> tf.Tensor:
    """Returns the hash of a state, int64 [], from those of its tensors, the result of `hash_each`."""
    return hash_each([hashes], device_type)[0]


def as_text(value: int) -> str:
    """Returns a hash as 16 hexadecimal digits."""
    return f"{value & (2**64 - 1):016x}"
