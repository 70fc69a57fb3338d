"""Which example stands at which position: a permutation per epoch, computed and never stored."""

import tensorflow as tf

# Keeps the order of examples apart from every other use of the run's seed.
SALT = 0x0DE2


def example_ids(
    step: tf.Tensor, slots: tf.Tensor, *, seed: int, num_examples: int, global_batch: int, shuffle: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which examples stand in `slots` of the global batch of `step`.

    An epoch is floor(num_examples / global_batch) steps; the remainder is dropped, and every epoch permutes all
    examples anew. The permutation is a block cipher restricted to [0, num_examples) (`RandomIndexShuffle`), so any
    position of any epoch is computed in O(1) time and memory. The public `index_shuffle` runs it with 4 rounds, which
    leaves epochs correlated for up to 60,000 examples; 8 rounds do not.

    Args:
        step: int64 [], the global step.
        slots: int64 [n], places in the global batch, in [0, global_batch).
        seed: the run's seed.
        num_examples: examples in the split.
        global_batch: examples in a step, over all replicas.
        shuffle: False returns the source's own order.

    Returns:
        (ids, epoch): int64 [n] in [0, num_examples), and int64 [].
    """
    steps_per_epoch = num_examples // global_batch
    epoch = step // steps_per_epoch
    positions = (step % steps_per_epoch) * global_batch + slots
    if not shuffle:
        return positions, epoch
    return permuted(positions, epoch, seed=seed, num_examples=num_examples), epoch


def permuted(positions: tf.Tensor, epoch: tf.Tensor, *, seed: int, num_examples: int) -> tf.Tensor:
    """Returns which of `num_examples` stand at `positions` (int64 [n]) of a shuffled `epoch` (int64 []): int64 [n]."""
    if num_examples == 1:
        return positions
    return tf.raw_ops.RandomIndexShuffle(
        index=positions,
        seed=tf.stack([tf.constant(seed, tf.int64), epoch, tf.constant(SALT, tf.int64)]),
        max_index=tf.constant(num_examples - 1, tf.int64),
        rounds=8,
    )


def seeds(ids: tf.Tensor, epoch: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns int64 [n, 2]: for each example of `ids` (int64 [n]) the seed of all its randomness in this epoch.

    Row i is ((seed << 32) | epoch, id): different for every (seed, epoch, example), and the same on any topology.
    """
    stream = tf.fill(tf.shape(ids), tf.constant(seed << 32, tf.int64) | epoch)
    return tf.stack([stream, ids], axis=1)
