"""Training and evaluation streams: the examples of each replica.

A dataset made here belongs to one worker and has one element per local replica and step.
`experimental_distribute_dataset` is not used: its sharding policies would make each worker prepare all examples, or
whole global batches.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.data import autograph, order, read_ahead
from tfdist.data.feed import Batch, Prepare


class Source(Protocol):
    """Random access to the examples of one split.

    Optional: `num_classes: int | None`, `verify()`, `fingerprint()` and `modified()` (docs/guide.md).
    """

    def __len__(self) -> int:
        """The number of examples."""

    def read(self, ids: tf.Tensor) -> Batch:
        """Returns the examples `ids` (int64 [n]) as a batch of tensors [n, ...]; called inside `Dataset.map`."""


@contextlib.contextmanager
def name_damaged_example(source: Source) -> Iterator[None]:
    """If the block raises a TensorFlow error, raises the source's error about its first damaged example instead."""
    try:
        yield
    except tf.errors.OpError:
        getattr(source, "verify", lambda: None)()
        raise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShard:
    """Maps the elements of one worker's dataset to slots of the global batch; a replica has consecutive slots."""

    # Global index of this worker's first replica.
    first_replica: int = 0
    local_replicas: int = 1
    num_replicas: int = 1

    def locate(self, element: tf.Tensor, global_batch: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the step (int64 []) and the slots (int64 [global_batch / num_replicas]) of element `element`."""
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
    """Returns a function that creates the training dataset of one worker.

    Args:
        global_batch: examples per step, over all replicas; divisible by the number of replicas.

    Returns:
        dataset(start, stop): prepared batches [global_batch / num_replicas, ...] of the steps [start,
        stop), repeated endlessly; see `_pipeline`. `prepare` is traced once for all calls.
    """
    read, prepare = autograph.convert_read(source), autograph.convert_prepare(prepare)
    part = order.examples_of(source)
    locate = locate_rows(source, shard, global_batch=global_batch, seed=seed, shuffle=shuffle)

    @tf.function(autograph=False)
    def load(element: tf.Tensor) -> Batch:
        _, rows, epoch = locate(element)
        return prepare(read(rows), order.seeds(part.ids(rows), epoch, seed), training=True)

    return functools.partial(_pipeline, shard, load)


def locate_rows(
    source: Source, shard: ReplicaShard, *, global_batch: int, seed: int, shuffle: bool
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Returns locate(element) -> the step (int64 []), the rows of the source (int64 [n]) and the epoch (int64 []).

    If the source holds a part of its split, `shard` and `global_batch` refer to the batches of this part.
    """
    part = order.examples_of(source)
    ordering = {
        "seed": seed,
        "num_examples": len(source),
        "global_batch": global_batch,
        "shuffle": shuffle,
        # Equal on all workers, even if some parts have one example more.
        "epoch_steps": order.steps_per_epoch(part.total, global_batch * part.count),
        "salt": order.SALT + part.index,
    }

    def locate(element: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        step, slots = shard.locate(element, global_batch)
        return step, *order.example_ids(step, slots, **ordering)

    return locate


def first_examples(source: Source, prepare: Prepare, count: int, *, seed: int) -> Batch:
    """Returns the first `count` examples (or all) in shuffled order, prepared without augmentation.

    It is the order of epoch 0; `config.data.shuffle` is not used.
    """
    positions, epoch = tf.range(min(count, len(source)), dtype=tf.int64), tf.zeros([], tf.int64)
    ids = order.permute(positions, epoch, seed=seed, num_examples=len(source))
    prepare = autograph.convert_prepare(prepare)
    return read_batch(source, ids, lambda batch: prepare(batch, order.seeds(ids, epoch, seed), training=False))


def read_batch(source: Source, ids: np.ndarray | tf.Tensor, change: Callable[[Batch], Batch] = dict) -> Batch:
    """Returns the examples `ids` (int64 [n]) of a source, changed by `change`; both are called as in training."""
    read = autograph.convert_read(source)
    # AutoGraph would take about a second to convert every function that `read` calls.
    load = tf.autograph.experimental.do_not_convert(lambda ids: change(read(ids)))
    return next(iter(tf.data.Dataset.from_tensors(ids).map(load)))


def evaluation(
    source: Source,
    prepare: Prepare,
    shard: ReplicaShard,
    *,
    global_batch: int,
    seed: int,
) -> tuple[tf.data.Dataset, int]:
    """Returns the evaluation dataset of one worker: every example of `source` once, padded to full batches.

    Returns:
        (dataset, steps): pairs of a batch and its mask, bool [global_batch / num_replicas], False for padding; and the
        number of steps of one pass.
    """
    part, num_examples = order.examples_of(source), len(source)
    steps = -(-part.total // (global_batch * part.count))
    read, prepare = autograph.convert_read(source), autograph.convert_prepare(prepare)

    @tf.function(autograph=False)
    def load(element: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        step, slots = shard.locate(element, global_batch)
        positions = step * global_batch + slots
        rows = tf.minimum(positions, num_examples - 1)
        seeds = order.seeds(part.ids(rows), tf.zeros([], tf.int64), seed)
        return prepare(read(rows), seeds, training=False), positions < num_examples

    return _pipeline(shard, load, 0, steps), steps


def _pipeline(shard: ReplicaShard, load: Callable[[tf.Tensor], Any], start: int, stop: int) -> tf.data.Dataset:
    elements = tf.data.Dataset.range(start * shard.local_replicas, stop * shard.local_replicas)
    # Endless: with a finite dataset, the workers would ask each other in every step whether all have another batch, and
    # batches would have dynamic shapes.
    elements = elements.repeat()
    spec = elements.map(load).element_spec  # `load` is traced once for both maps.
    calls, buffer = read_ahead.limits(spec, rows=1, local_replicas=shard.local_replicas)
    return elements.map(load, num_parallel_calls=calls, deterministic=True).prefetch(buffer)
