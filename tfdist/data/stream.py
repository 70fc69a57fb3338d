"""Training and evaluation streams: which replica gets which examples, and nothing else.

A dataset made here is one worker's own, with one element per local replica and step, to be given to
`strategy.distribute_datasets_from_function`. Through `experimental_distribute_dataset` the textbook policies make every
worker prepare all examples, and `AutoShardPolicy.HINT` makes it prepare a whole global batch of its own at a time, as
many steps ahead as there are workers: memory and the first step's delay then do not fall as workers are added.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from tfdist.data import autograph, order

Batch = dict[str, tf.Tensor]
# prepare(batch, seeds, *, training) -> batch
Prepare = Callable[..., Batch]


class Source(Protocol):
    """Random access to the examples of one split. Optional: `num_classes: int | None`, `verify()`, `fingerprint()`."""

    def __len__(self) -> int:
        """The number of examples."""

    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids` (int64 [n]) as a batch of tensors [n, ...]; called inside `Dataset.map`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShard:
    """The part of every global batch that one worker's replicas take: consecutive slots, the same on any topology."""

    # The index of this worker's first replica among all, its number of replicas, and the number of all replicas.
    first_replica: int = 0
    local_replicas: int = 1
    num_replicas: int = 1

    def locate(self, element: tf.Tensor, global_batch: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the step (int64 []) and the slots (int64 [global_batch / num_replicas]) of an element."""
        size = global_batch // self.num_replicas
        replica = self.first_replica + element % self.local_replicas
        return element // self.local_replicas, replica * size + tf.range(size, dtype=tf.int64)


def training(
    source: Source,
    prepare: Prepare,
    shard: ReplicaShard,
    *,
    global_batch: int,
    seed: int,
    shuffle: bool,
) -> Callable[[int, int], tf.data.Dataset]:
    """One worker's share of all steps.

    Returns:
        dataset(first_step, last_step): `prepare`d batches [global_batch / num_replicas, ...] of the steps [first_step,
        last_step). It goes on for ever; see `_pipeline`. However often it is called, `prepare` is traced once.
    """
    read, prepare = autograph.convert(source.read), autograph.convert(prepare)

    @tf.function(autograph=False)
    def load(element: tf.Tensor) -> Batch:
        step, slots = shard.locate(element, global_batch)
        ids, epoch = order.example_ids(
            step, slots, seed=seed, num_examples=len(source), global_batch=global_batch, shuffle=shuffle
        )
        return prepare(read(ids), order.seeds(ids, epoch, seed), training=True)

    return functools.partial(_pipeline, shard, load)


def first_examples(source: Source, prepare: Prepare, count: int, *, seed: int) -> Batch:
    """Returns the first `count` examples of epoch 0 (all, where there are fewer), prepared without augmentation."""
    num_examples = len(source)
    slots = tf.range(min(count, num_examples), dtype=tf.int64)
    read, prepare = autograph.convert(source.read), autograph.convert(prepare)

    @tf.autograph.experimental.do_not_convert
    def load(step: tf.Tensor) -> Batch:
        ids, epoch = order.example_ids(
            step, slots, seed=seed, num_examples=num_examples, global_batch=num_examples, shuffle=True
        )
        return prepare(read(ids), order.seeds(ids, epoch, seed), training=False)

    return next(iter(tf.data.Dataset.range(1).map(load)))


def evaluation(
    source: Source, prepare: Prepare, shard: ReplicaShard, *, global_batch: int, seed: int
) -> tuple[tf.data.Dataset, int]:
    """One worker's share of a pass over `source` that takes every example once, padded to full batches.

    Returns:
        (dataset, steps): batches with masks, bool [global_batch / num_replicas], False for padding; and the steps of
        one pass.
    """
    num_examples = len(source)
    steps = -(-num_examples // global_batch)
    read, prepare = autograph.convert(source.read), autograph.convert(prepare)

    @tf.autograph.experimental.do_not_convert
    def load(element: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        step, slots = shard.locate(element, global_batch)
        positions = step * global_batch + slots
        ids = tf.minimum(positions, num_examples - 1)
        batch = prepare(read(ids), order.seeds(ids, tf.zeros([], tf.int64), seed), training=False)
        return batch, positions < num_examples

    return _pipeline(shard, load, 0, steps), steps


def _pipeline(
    shard: ReplicaShard, load: Callable[[tf.Tensor], Any], first_step: int, last_step: int
) -> tf.data.Dataset:
    elements = tf.data.Dataset.range(first_step * shard.local_replicas, last_step * shard.local_replicas)
    # Endless, though the loop knows the length and never takes more: of a finite stream, several workers would ask each
    # other in every step whether all have a batch left, and its batches would have dynamic shapes.
    elements = elements.repeat()
    return elements.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)
