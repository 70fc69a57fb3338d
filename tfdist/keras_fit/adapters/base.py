"""What scripts train on, be it arrays or datasets, as shares of batches for this worker's replicas.

An element is {"data": (x,), (x, y) or (x, y, sample_weight), "count", "total"}: a replica's examples of a step, their
number, and the number of the whole batch. Shares are consecutive, differ by one example at most, and have no padding; a
replica for which there is none gets one example with a count of 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import tf_dataset_adapter

from tfdist.data import order
from tfdist.data.stream import ReplicaShard


class DataAdapter(Protocol):
    """Data of one split, seen from every worker alike."""

    # Steps in an epoch, and examples in a step but the last.
    steps: int
    batch_size: int
    # Of a whole batch of any size: nested tf.TensorSpec.
    element_spec: Any
    # Examples in the smallest batch, or fewer where that is not known.
    smallest_batch: int
    # Why an exact resume needs more than this data can give; None: it does not.
    weakness: str | None

    def dataset(self, share: ReplicaShard, first_step: int, last_step: int) -> tf.data.Dataset:
        """This worker's elements of the steps [first_step, last_step), which go on for ever."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RandomAccessAdapter:
    """Random access to single examples: every worker reads its own share alone."""

    # read(ids int64 [n]) -> nested tensors [n, ...]
    read: Callable[[tf.Tensor], Any]
    num_examples: int
    batch_size: int
    # Steps in an epoch. Where that is not a pass, passes go on from one epoch to the next.
    steps: int
    seed: int
    shuffle: bool
    weakness: str | None = None

    @property
    def pass_steps(self) -> int:
        """Steps in a pass over all examples; the last may have fewer examples."""
        return -(-self.num_examples // self.batch_size)

    @property
    def smallest_batch(self) -> int:
        """Examples in the smallest batch."""
        return self.num_examples - (self.pass_steps - 1) * self.batch_size

    @property
    def element_spec(self) -> Any:
        """Of a whole batch."""
        return tf.data.Dataset.from_tensors(tf.zeros([1], tf.int64)).map(self._read_any).element_spec

    def dataset(self, share: ReplicaShard, first_step: int, last_step: int) -> tf.data.Dataset:
        """This worker's elements; see `Feed`."""
        even = self.num_examples % self.batch_size == 0 and self.batch_size % share.num_replicas == 0

        def load(element: tf.Tensor) -> dict[str, Any]:
            step, replica = element // share.local_replicas, share.first_replica + element % share.local_replicas
            epoch, first = step // self.pass_steps, step % self.pass_steps * self.batch_size
            total = tf.minimum(tf.constant(self.batch_size, tf.int64), self.num_examples - first)
            low, count = shard_bounds(replica, total, share.num_replicas)
            positions = first + low + tf.range(tf.maximum(count, 1))
            if even:  # Of known shapes, which some kernels and XLA are faster with.
                positions = tf.ensure_shape(positions, [self.batch_size // share.num_replicas])
            if self.shuffle:
                positions = order.permuted(positions, epoch, seed=self.seed, num_examples=self.num_examples)
            return {"data": self.read(positions), "count": count, "total": total}

        elements = tf.data.Dataset.range(first_step * share.local_replicas, last_step * share.local_replicas).repeat()
        load = tf.autograph.experimental.do_not_convert(load)
        elements = elements.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return elements.prefetch(tf.data.AUTOTUNE)

    def _read_any(self, ids: tf.Tensor) -> Any:
        return self.read(tf.ensure_shape(tf.reshape(ids, [-1]), [None]))


def shard_bounds(replica: tf.Tensor, total: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (low, count), int64 []: which of `total` examples are the `replica`'s; low is below total in any case."""
    low, high = replica * total // num_replicas, (replica + 1) * total // num_replicas
    return low, high - low


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchAdapter:
    """A sequence of whole batches, of which each replica takes its share."""

    # The batches of one epoch after another, from a step on: nested tensors [batch, ...].
    stream: Callable[[int], tf.data.Dataset]
    steps: int
    batch_size: int
    element_spec: Any
    smallest_batch: int
    # Reads what workers compare, where that can be read without being lost.
    sample: Callable[[], list[np.ndarray]] | None
    weakness: str | None = None
    # This worker's elements from a step on, made without what is other workers' work; None: each makes whole batches.
    own: Callable[[ReplicaShard, int], tf.data.Dataset] | None = None

    def dataset(self, share: ReplicaShard, first_step: int, last_step: int) -> tf.data.Dataset:
        """This worker's elements; see `Feed`."""
        if self.own is not None:
            return self.own(share, first_step).repeat().prefetch(tf.data.AUTOTUNE)

        def shares(*batch: Any) -> tf.data.Dataset:
            def load(local: tf.Tensor) -> dict[str, Any]:
                total = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
                low, count = shard_bounds(share.first_replica + local, total, share.num_replicas)
                rows = slice(low, low + tf.maximum(count, 1))
                return {"data": tf.nest.map_structure(lambda t: t[rows], batch), "count": count, "total": total}

            return tf.data.Dataset.range(share.local_replicas).map(load)

        del last_step
        return self.stream(first_step).flat_map(shares).repeat().prefetch(tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """How the data shall be taken."""

    batch_size: int | None = None
    # Steps in an epoch; None: until the data ends.
    steps: int | None = None
    shuffle: bool = False
    class_weight: dict[int, float] | None = None
    seed: int = 0
    # The rank of each input of the model, with the batch's own dimension; None where the model does not say.
    input_ranks: tuple[int, ...] | None = None


def with_class_weight(batch: Any, wish: DataOptions) -> tuple:
    """Makes (x,), (x, y) or (x, y, sample_weight) of a batch, with the weights of its classes."""
    parts = tuple(part for part in keras.utils.unpack_x_y_sample_weight(batch) if part is not None)
    if wish.class_weight is None:
        return parts
    if len(parts) < 2:
        raise ValueError("class_weight needs targets, and the data has none.")
    return tf_dataset_adapter.make_class_weight_map_fn(wish.class_weight)(*parts)
