"""Position in an epoch -> example id: a permutation per epoch, computed instead of stored."""

import dataclasses
from typing import Any

import tensorflow as tf

# An arbitrary constant: it separates the order of examples from other uses of the run's seed.
SALT = 0x0DE2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExamples:
    """The examples of a split that belong to one worker for the whole run. A row is an index into them, from 0."""

    # Examples of the whole split.
    total: int
    # The worker, and the number of workers.
    index: int = 0
    count: int = 1
    # True: consecutive examples. False: index, index + count, index + 2 count, ...
    contiguous: bool = False

    def __len__(self) -> int:
        return len(self.examples())

    def examples(self) -> range:
        """Returns the ids, in the whole split, of this worker's examples."""
        if self.contiguous:
            return range(*(self.total * index // self.count for index in (self.index, self.index + 1)))
        return range(self.index, self.total, self.count)

    def ids(self, rows: tf.Tensor) -> tf.Tensor:
        """Converts rows to ids in the whole split."""
        examples = self.examples()
        return rows * examples.step + examples.start if self.count > 1 else rows


def examples_of(source: Any) -> WorkerExamples:
    """Returns which examples of its split a source holds: all, or those of a worker; see `fixed_shards`."""
    part = getattr(source, "worker_examples", None)
    return WorkerExamples(total=len(source)) if part is None else part


def steps_per_epoch(num_examples: int, global_batch: int) -> int:
    """Returns the steps in an epoch: floor(num_examples / global_batch); the remainder is dropped."""
    return num_examples // global_batch


def example_ids(
    step: tf.Tensor,
    slots: tf.Tensor,
    *,
    seed: int,
    num_examples: int,
    global_batch: int,
    shuffle: bool,
    epoch_steps: int | None = None,
    salt: int = SALT,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of the examples in `slots` of the global batch of `step`.

    An epoch is floor(num_examples / global_batch) steps; the remainder is dropped, and each epoch has a new permutation
    of all examples. The permutation is a block cipher restricted to [0, num_examples) (`RandomIndexShuffle`), so any
    position of any epoch is computed in O(1) time and memory. With the 4 rounds of TensorFlow's public `index_shuffle`,
    the orders of epochs of up to 60,000 examples are correlated; with 8 rounds they are not.

    Args:
        slots: int64 [n], positions in the global batch, in [0, global_batch).
        shuffle: False: the order of the source.
        epoch_steps: steps in an epoch, if fewer than floor(num_examples / global_batch).
        salt: selects an independent permutation.

    Returns:
        (ids, epoch): int64 [n] in [0, num_examples), and int64 [].
    """
    epoch_steps = steps_per_epoch(num_examples, global_batch) if epoch_steps is None else epoch_steps
    epoch = step // epoch_steps
    positions = (step % epoch_steps) * global_batch + slots
    if not shuffle:
        return positions, epoch
    return permute(positions, epoch, seed=seed, num_examples=num_examples, salt=salt), epoch


def permute(positions: tf.Tensor, epoch: tf.Tensor, *, seed: int, num_examples: int, salt: int = SALT) -> tf.Tensor:
    """Returns the example ids, int64 [n], at `positions` (int64 [n]) of a shuffled `epoch` (int64 [])."""
    if num_examples == 1:
        return positions
    return tf.raw_ops.RandomIndexShuffle(
        index=positions,
        seed=tf.stack([tf.constant(seed, tf.int64), epoch, tf.constant(salt, tf.int64)]),
        max_index=tf.constant(num_examples - 1, tf.int64),
        rounds=8,
    )


def seeds(ids: tf.Tensor, epoch: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns the seeds of the examples `ids` (int64 [n]) in `epoch` (int64 [] or [n]), int64 [n, 2].

    Row i is ((seed << 32) | epoch, id): unique for each (seed, epoch, example), and the same on any topology.
    """
    seed_and_epoch = tf.fill(tf.shape(ids), tf.constant(seed << 32, tf.int64)) | epoch
    return tf.stack([seed_and_epoch, ids], axis=1)
