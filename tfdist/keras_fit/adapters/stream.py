"""Data that is a sequence of batches: each worker reads all of it in Keras' order, and keeps its own rows.

`Passes` gives the batches. Nothing of an epoch is read before it begins, and nothing after it ends, so Python code
that makes batches, and variables that a pipeline reads, see what callbacks have changed before the epoch. At the start
and the end of an epoch, the same is done to the data as in Keras: hooks such as `on_epoch_begin` are called, and an
iterator is made, which begins a pass of a shuffle. A resumed run also does this for the earlier epochs, because it may
change the data.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import read_ahead
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base, same_data
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.adapters.passes import Passes

_convert = tf.autograph.experimental.do_not_convert


@dataclasses.dataclass(kw_only=True, eq=False)
class Stream(DataAdapter):
    """A sequence of global batches, from which each replica takes its rows."""

    passes: Passes
    element_spec: Any
    # Applied to the rows of a replica: `unpack(batch)` -> (x,), (x, y) or (x, y, sample_weight).
    unpack: Callable[[Any], tuple]
    # Applied before `unpack`, to the rows that are read.
    map_rows: Callable[[Any], Any] = lambda rows: rows
    # Reads the columns, by name, that workers compare at the start; None: reading would consume them.
    sample_columns: Callable[[], dict[str, np.ndarray]] | None = None
    # Hooks of the data object, called as by Keras.
    on_epoch_begin: Callable[[], None] = lambda: None
    on_epoch_end: Callable[[], None] = lambda: None
    # Called with an epoch that is repeated, at its end.
    validate: Callable[[int], None] = lambda epoch: None

    def __post_init__(self) -> None:
        self._epoch, self._in_epoch, self._was_opened = -1, False, False
        # The summary of the first batch of the epoch; zeros if it was not noted.
        self.first_batch = same_data.summary([])
        self._made: dict[Any, tf.data.Dataset] = {}

    def reset(self, first: int) -> None:
        """Called before a training, whose first epoch is `first`, or an evaluation: Keras calls on_epoch_end there."""
        self.on_epoch_end()
        self.passes.reset()
        self._epoch = first - 1

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch of training; first repeats the earlier epochs, which an earlier start has made."""
        while self._epoch < epoch:
            if self._in_epoch:
                self._repeat(self.steps)
            self._begin(self._epoch + 1)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._in_epoch, self._was_opened = epoch, True, False
        self.on_epoch_begin()

    def _repeat(self, steps: int) -> None:
        if not self._was_opened:
            self.passes.skip_epoch(steps)
        if steps == self.steps:
            self.end_epoch()
            self.validate(self._epoch)

    def end_epoch(self) -> None:
        self._in_epoch = False
        self.passes.end()
        self.on_epoch_end()

    def finish(self, steps: int) -> None:
        self.begin_epoch((steps - 1) // self.steps)
        if self._in_epoch:
            self._repeat((steps - 1) % self.steps + 1)

    def one_pass(self, shard: ReplicaShard, *, reset: bool) -> tf.data.Dataset:
        if reset:
            self.reset(0)
        self._begin(0)
        return self.elements(shard)

    def repeat_pass(self) -> None:
        self.reset(0)
        self._begin(0)
        self.passes.skip_epoch(self.steps)
        self.end_epoch()

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        self._epoch = start // self.steps
        return self.elements(shard, start % self.steps) if start < stop else self._elements(shard, 0).take(0)

    def elements(self, shard: ReplicaShard, first: int = 0) -> tf.data.Dataset:
        """Returns this worker's elements of the epoch that has begun, from step `first` on."""
        self._was_opened = True
        self.passes.begin(first)
        if (shard, first) not in self._made:  # It takes time to trace.
            self._made = {(shard, first): self._elements(shard, first)}
        return self._made[shard, first]

    def _elements(self, shard: ReplicaShard, first: int) -> tf.data.Dataset:
        batches = self.passes.batches(first)
        if self.made_by_code:
            batches = tf.data.Dataset.zip((tf.data.Dataset.range(first, self.steps), batches))
            batches = batches.map(_convert(self._note_first))
        elements = _cut(batches, shard)

        def finish(element: dict[str, Any]) -> dict[str, Any]:
            return element | {"data": self.unpack(self.map_rows(element["data"]))}

        rows = -(-self.batch_size // shard.num_replicas)
        calls, buffer = read_ahead.limits(elements.element_spec, rows=rows, local_replicas=shard.local_replicas)
        elements = elements.map(_convert(finish), num_parallel_calls=calls, deterministic=True)
        # Declared endless: otherwise `tf.distribute` would ask each replica in each step whether it has ended.
        elements = elements.apply(tf.data.experimental.assert_cardinality(tf.data.experimental.INFINITE_CARDINALITY))
        return elements.prefetch(buffer)

    def _note_first(self, step: tf.Tensor, batch: Any) -> Any:
        def note(*arrays: np.ndarray) -> np.int64:
            self.first_batch = same_data.summary(arrays)
            return np.int64(0)

        parts = tf.nest.flatten(batch, expand_composites=True)
        zero = tf.zeros([], tf.int64)
        tf.cond(tf.equal(step, 0), lambda: tf.numpy_function(note, parts, tf.int64), lambda: zero)
        return batch

    def sample(self, count: int) -> dict[str, np.ndarray]:
        return {} if self.sample_columns is None else self.sample_columns()


def _cut(batches: tf.data.Dataset, shard: ReplicaShard) -> tf.data.Dataset:
    """Returns for each batch the rows of each local replica; tensors without rows are passed on whole."""
    divided = base.have_rows(batches.element_spec)

    def shards(*batch: Any) -> tf.data.Dataset:
        batch = batch if isinstance(batches.element_spec, tuple) else batch[0]

        def load(local: tf.Tensor) -> dict[str, Any]:
            flat = tf.nest.flatten(batch)
            rows = [whole for whole, has in zip(flat, divided, strict=True) if has]
            totals = [tf.shape(whole, out_type=tf.int64)[0] for whole in rows]
            with tf.control_dependencies(_check_rows(totals, shard.num_replicas)):
                bounds = [base.shard_bounds(shard.first_replica + local, n, shard.num_replicas) for n in totals]
            own = [_rows(whole, *one) for whole, one in zip(rows, bounds, strict=True)]
            for part, whole in zip(own, rows, strict=True):
                size = whole.shape[0] if isinstance(part, tf.Tensor) and whole.shape.rank else None
                if size and size % shard.num_replicas == 0:  # As in Keras: a step may read it from the shape.
                    part.set_shape([size // shard.num_replicas, *whole.shape[1:]])
            left = iter(own)
            parts = [next(left) if has else whole for whole, has in zip(flat, divided, strict=True)]
            return {"data": tf.nest.pack_sequence_as(batch, parts), "count": bounds[0][1], "total": totals[0]}

        return tf.data.Dataset.range(shard.local_replicas).map(load)

    return batches.flat_map(_convert(shards))


def _rows(part: Any, low: tf.Tensor, count: tf.Tensor) -> Any:
    """Returns `count` rows from `low` on, at least one."""
    count = tf.maximum(count, 1)
    if not isinstance(part, tf.SparseTensor):
        return part[low : low + count]
    others = part.dense_shape[1:]
    sliced = tf.sparse.slice(part, tf.concat([[low], tf.zeros_like(others)], 0), tf.concat([[count], others], 0))
    sliced.indices.set_shape([None, part.shape.rank])
    return sliced


def _check_rows(totals: list[tf.Tensor], replicas: int) -> list[tf.Operation]:
    """Checks that tensors of different numbers of rows, such as labelled and unlabelled images, have equal shards."""
    sizes = tf.stack(totals)
    equal = tf.reduce_all(tf.equal(sizes, sizes[0])) | tf.reduce_all(tf.equal(sizes % replicas, 0))
    text = (
        f"A batch holds tensors of different numbers of rows; each must be divisible by {replicas} replicas: use "
        "batch(N, drop_remainder=True), with an N that is divisible by them. Rows:"
    )
    return [] if len(totals) == 1 or replicas == 1 else [tf.debugging.Assert(equal, [text, sizes], summarize=-1)]
