"""Python code that makes batches: it reads nothing of an epoch before it begins, and its first batches are noted.

In Keras the code of a `tf.data` pipeline runs when an epoch begins, so it sees what callbacks have changed before.
tfdist reads ahead, also into the next epoch; where a callback has hooks of epochs, the pipeline waits at its end.
"""

import threading
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

# Values of an array that are noted.
_VALUES = 2**16
# Threads of a pipeline of its own: one that waits must not keep others from running.
THREADS = 4


class EpochGate:
    """Lets a pipeline read the batches of an epoch when it has begun; open at first."""

    def __init__(self, steps: int):
        self._steps = steps
        self._changed = threading.Condition()
        # The last epoch that may be read; None: all.
        self._limit: int | None = None
        self._closed = False
        # Epoch -> the summary of its first batch.
        self._first: dict[int, tuple[float, ...]] = {}
        self._iterators: list[Any] = []
        # The epoch that trains.
        self.epoch = 0

    @property
    def holds(self) -> bool:
        """Whether epochs are read one by one."""
        return self._limit is not None

    def hold(self) -> None:
        with self._changed:
            self._limit = -1

    def begin(self, epoch: int) -> None:
        with self._changed:
            self.epoch = epoch
            if self._limit is not None:
                self._limit = max(self._limit, epoch)
            self._first = {number: found for number, found in self._first.items() if number >= epoch}
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._limit = None
            self._changed.notify_all()

    def keep(self, iterator: Any) -> Any:
        """Keeps the iterator that reads until `close`, and returns it: to delete it takes until nothing of it waits."""
        self._iterators.append(iterator)
        return iterator

    def close(self) -> None:
        """Ends what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._iterators.clear()

    def wait(self, step: int) -> bool:
        """Waits until the epoch of `step` has begun; returns False if nothing more is read."""
        epoch = int(step) // self._steps
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._limit is None or epoch <= self._limit)
            return not self._closed

    def look(self, step: int, arrays: Iterable[Any]) -> None:
        """Notes a batch, if it is the first of its epoch."""
        epoch, rest = divmod(int(step), self._steps)
        if not rest:
            with self._changed:
                self._first[epoch] = summary(arrays)

    def first_batch(self) -> tuple[float, ...]:
        """Returns the summary of the first batch of the epoch that trains; zeros if it was not noted."""
        with self._changed:
            return self._first.get(self.epoch, summary([]))

    def watch(self, dataset: tf.data.Dataset, start: int) -> tf.data.Dataset:
        """Returns `dataset`, the batches from step `start` on, read epoch by epoch."""

        def at_epoch(step: tf.Tensor, function: Any, *parts: Any) -> tf.Tensor:
            def call() -> tf.Tensor:
                return tf.numpy_function(function, [step, *parts], tf.int64)

            return tf.cond(tf.equal(step % self._steps, 0), call, lambda: step)

        def wait_for_epoch(step: np.int64) -> np.int64:
            if not self.wait(step):
                raise StopIteration
            return step

        def note_batch(step: np.int64, *parts: np.ndarray) -> np.int64:
            self.look(step, parts)
            return step

        def look(step: tf.Tensor, batch: Any) -> Any:
            at_epoch(step, note_batch, *tf.nest.flatten(batch, expand_composites=True))
            return batch

        convert = tf.autograph.experimental.do_not_convert
        numbers = tf.data.Dataset.range(start, np.iinfo(np.int64).max)
        numbers = numbers.map(convert(lambda step: at_epoch(step, wait_for_epoch)))
        # The number is taken first.
        found = tf.data.Dataset.zip((numbers, dataset)).map(convert(look))
        if not self.holds:
            return found
        options = tf.data.Options()
        options.threading.private_threadpool_size = THREADS
        return found.with_options(options)


def summary(arrays: Iterable[Any]) -> tuple[float, ...]:
    """Returns four numbers about arrays: a hash of those that are not floats, and sums of those that are.

    Processors round differently, so sums of two workers may differ in their last digits.
    """
    hashed, sums = 0, np.zeros(3)
    for array in arrays:
        values = np.asarray(array).reshape(-1)
        values = values[:: max(1, len(values) // _VALUES)]
        if values.dtype.kind == "f":
            values = np.nan_to_num(values.astype(np.float64))
            pattern = np.cos(np.arange(len(values), dtype=np.float64))
            sums += [values.sum(), np.abs(values).sum(), (np.abs(values) * (pattern + 1)).sum()]
        else:
            content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
            hashed = zlib.crc32(content, hashed)
    return float(hashed), *sums.tolist()
