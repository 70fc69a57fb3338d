"""Data that is a sequence of batches: each worker reads all of it in Keras' order, and keeps its own rows.

`Passes` gives the batches. Nothing of an epoch is read before it begins, and nothing after it ends, so Python code
that makes batches sees what callbacks have changed before the epoch, and a pipeline reads the current values of
variables. At the start and the end of an epoch, the same is done to the data as in Keras: hooks such as
`on_epoch_begin` are called, and an iterator is made, which begins a pass of a shuffle. A resumed run also does this for
the earlier epochs, because it may change the data.
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
    # (rows of a replica, as they are read) -> (batch,), what a step gets; see base.py.
    unpack: Callable[[Any], tuple]
    sample: Callable[[int], dict[str, np.ndarray]] = lambda count: {}
    # Hooks of the data object, called as by Keras.
    on_epoch_begin: Callable[[], None] = lambda: None
    on_epoch_end: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        # The summary of the first batch of the epoch; zeros if it was not noted.
        self.first_batch = same_data.summary([])
        self._made: dict[Any, tf.data.Dataset] = {}

    def reset(self) -> None:
        """Called before training, and before an evaluation: Keras calls on_epoch_end there."""
        self.on_epoch_end()
        self.passes.reset()

    def begin_epoch(self, first: int = 0) -> None:
        """Begins an epoch at step `first`: an earlier start has made the steps before it."""
        self.on_epoch_begin()
        self.passes.begin()
        self.passes.skip(first)

    def end_epoch(self) -> None:
        self.passes.end()
        self.on_epoch_end()

    def repeat_epoch(self) -> None:
        self.begin_epoch(self.steps)
        self.end_epoch()

    def one_pass(self, shard: ReplicaShard, *, reset: bool) -> tf.data.Dataset:
        if reset:
            self.reset()
        self.begin_epoch()
        return self.elements(shard)

    def repeat_pass(self) -> None:
        self.reset()
        self.repeat_epoch()

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        self.passes.begin()
        self.passes.skip(start % self.steps)
        return self.elements(shard, start % self.steps)

    def elements(self, shard: ReplicaShard, first: int = 0) -> tf.data.Dataset:
        """Returns this worker's elements of the epoch that has begun, from step `first` on."""
        self.passes.catch_up()
        if (shard, first) not in self._made:  # It takes time to trace.
            self._made = {(shard, first): self._elements(shard, first)}
        return self._made[shard, first]

    def _elements(self, shard: ReplicaShard, first: int) -> tf.data.Dataset:
        batches = self.passes.batches(first)
        if self.made_by_code:
            batches = batches.enumerate(first).map(_convert(self._note_first))
        elements = _cut(batches, shard)

        def finish(element: dict[str, Any]) -> dict[str, Any]:
            return element | {"data": self.unpack(element["data"])}

        rows = -(-self.batch_size // shard.num_replicas)
        calls, buffer = read_ahead.limits(elements.element_spec, rows=rows, local_replicas=shard.local_replicas)
        elements = elements.map(_convert(finish), num_parallel_calls=calls, deterministic=True)
        # Declared endless: otherwise `tf.distribute` would ask in each step whether the data of a replica has ended.
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


def _cut(batches: tf.data.Dataset, shard: ReplicaShard) -> tf.data.Dataset:
    """Returns for each batch the rows of each local replica; tensors without rows are passed on whole."""
    divided = base.have_rows(batches.element_spec)

    def shards(*batch: Any) -> tf.data.Dataset:
        batch = batch if isinstance(batches.element_spec, tuple) else batch[0]

        def load(local: tf.Tensor) -> dict[str, Any]:
            flat, replica = tf.nest.flatten(batch), shard.first_replica + local
            totals = [tf.shape(one, out_type=tf.int64)[0] for one, has in zip(flat, divided, strict=True) if has]
            with tf.control_dependencies(_check_rows(totals, shard.num_replicas)):
                _, count = base.shard_bounds(replica, totals[0], shard.num_replicas)
                pairs = zip(flat, divided, strict=True)
                parts = [_rows(one, replica, shard.num_replicas) if has else one for one, has in pairs]
            return {"data": tf.nest.pack_sequence_as(batch, parts), "count": count, "total": totals[0]}

        return tf.data.Dataset.range(shard.local_replicas).map(load)

    return batches.flat_map(_convert(shards))


def _rows(whole: Any, replica: tf.Tensor, num_replicas: int) -> Any:
    """Returns the rows of a replica, at least one."""
    low, count = base.shard_bounds(replica, tf.shape(whole, out_type=tf.int64)[0], num_replicas)
    count = tf.maximum(count, 1)
    if isinstance(whole, tf.SparseTensor):
        others = whole.dense_shape[1:]
        sliced = tf.sparse.slice(whole, tf.concat([[low], tf.zeros_like(others)], 0), tf.concat([[count], others], 0))
        sliced.indices.set_shape([None, whole.shape.rank])
        return sliced
    part = whole[low : low + count]
    size = whole.shape[0] if isinstance(whole, tf.Tensor) and whole.shape.rank else None
    if size and size % num_replicas == 0:  # As in Keras: a step may read it from the shape.
        part.set_shape([size // num_replicas, *whole.shape[1:]])
    return part


def _check_rows(totals: list[tf.Tensor], replicas: int) -> list[tf.Operation]:
    """Checks that tensors of different numbers of rows, such as labelled and unlabelled images, have equal shards."""
    sizes = tf.stack(totals)
    equal = tf.reduce_all(tf.equal(sizes, sizes[0])) | tf.reduce_all(tf.equal(sizes % replicas, 0))
    text = (
        f"A batch holds tensors of different numbers of rows; each must be divisible by {replicas} replicas: use "
        "batch(N, drop_remainder=True), with an N that is divisible by them. Rows:"
    )
    return [] if len(totals) == 1 or replicas == 1 else [tf.debugging.Assert(equal, [text, sizes], summarize=-1)]
