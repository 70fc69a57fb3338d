"""One round of a burn-in on one device: a short training, hashed, and rates of arithmetic and memory."""

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

_STEPS, _BATCH, _RATE = 20, 32, 0.05
# Shapes of the weights: two convolutions and a dense layer.
_SHAPES = ((3, 3, 3, 16), (3, 3, 16, 32), (4 * 4 * 32, 10))
# Per type of device: size of the matrices, how many are multiplied; bytes that are copied, how often.
_SIZES = {"CPU": (384, 8, 2**23, 8), "GPU": (4096, 16, 2**28, 16)}


class Probe:
    """Makes rounds on one device, such as "GPU:0"; the clock is `time.process_time` on processors that others share."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter):
        self._device, self._clock = device, clock
        self._type = device.partition(":")[0]
        size, self._products, num_bytes, self._copies = _SIZES[self._type]
        with tf.device(device):
            self._matrix = tf.random.stateless_uniform([size, size], [1, 2], -1.0, 1.0)
            self._vector = tf.zeros([num_bytes // 4])
        self._host = np.zeros(num_bytes // 4, np.float32)
        self.train = tf.function(_train, autograph=False)
        self._multiply = tf.function(self._multiply_often, autograph=False)
        self._copy = tf.function(self._copy_often, autograph=False)
        self.round()  # Traced, and the device is warm.

    def round(self) -> dict[str, Any]:
        """Makes one round.

        Returns "hash" of the trained weights; "finite", whether they are; "arithmetic" in GFLOP/s; "memory" and, for
        GPUs, "copy" from the host, in GB/s.
        """
        with tf.device(self._device):
            weights = [value.numpy() for value in self.train()]
            size = self._matrix.shape[0]
            multiplied = self._seconds(self._multiply)
            copied = self._seconds(self._copy)
            found = {
                "hash": hashlib.blake2b(b"".join(one.tobytes() for one in weights), digest_size=8).hexdigest(),
                "finite": bool(all(np.isfinite(one).all() for one in weights)),
                "arithmetic": 2e-9 * size**3 * self._products / multiplied,
                "memory": 2e-9 * self._host.nbytes * self._copies / copied,
            }
            if self._type == "GPU":
                sent = self._seconds(lambda: tf.reduce_sum(tf.identity(tf.constant(self._host))[:1]))
                found["copy"] = 1e-9 * self._host.nbytes / sent
        return found

    def _seconds(self, function: Callable[[], tf.Tensor]) -> float:
        begin = self._clock()
        function().numpy()
        return max(self._clock() - begin, 1e-9)

    def _multiply_often(self) -> tf.Tensor:
        factor = 1.0 / self._matrix.shape[0]
        body = lambda index, value: (index + 1, tf.matmul(value, self._matrix) * factor)  # noqa: E731
        _, value = tf.while_loop(lambda index, _: index < self._products, body, (tf.constant(0), self._matrix))
        return value[0, 0]

    def _copy_often(self) -> tf.Tensor:
        body = lambda index, value: (index + 1, value + 1.0)  # noqa: E731
        _, value = tf.while_loop(lambda index, _: index < self._copies, body, (tf.constant(0), self._vector))
        return value[0]


def _train() -> list[tf.Tensor]:
    """Trains a small network from fixed weights on fixed examples; returns its weights."""
    images = tf.random.stateless_uniform([_BATCH, 16, 16, 3], [3, 4])
    labels = tf.random.stateless_uniform([_BATCH], [5, 6], 0, 10, tf.int32)
    weights = [0.1 * tf.random.stateless_normal(shape, [7, index]) for index, shape in enumerate(_SHAPES)]

    def step(index: tf.Tensor, *weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            hidden = tf.nn.relu(tf.nn.conv2d(images, weights[0], 2, "SAME"))
            hidden = tf.nn.relu(tf.nn.conv2d(hidden, weights[1], 2, "SAME"))
            logits = tf.reshape(hidden, [_BATCH, -1]) @ weights[2]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, weights)
        return index + 1, *(one - _RATE * change for one, change in zip(weights, gradients, strict=True))

    return list(tf.while_loop(lambda index, *_: index < _STEPS, step, (tf.constant(0), *weights))[1:])
