"""`config.data.pipeline = "textbook"`: shuffle, batch and `strategy.experimental_distribute_dataset`.

    dataset.shuffle(n, seed).batch(global_batch, drop_remainder=True)

TensorFlow divides the global batches among the replicas; each worker prepares all examples. Each epoch has a shuffle
with its own seed, so that a resume starts with the interrupted epoch and skips the batches before its step.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.data import autograph, description, inspection, order
from tfdist.data.feed import Batch, Distributor, Prepare
from tfdist.data.stream import ReplicaShard, Source

# Entries of an example besides its features: its number, and the epoch.
_ID, _EPOCH = "tfdist example", "tfdist epoch"
# Examples that a source reads at a time.
_CHUNK = 256
NOTE = (
    'config.data.pipeline="textbook": each worker reads and prepares all examples; a resume reads the interrupted '
    "epoch again, up to its step (docs/consistency.md)."
)


def training(
    source: Source,
    prepare: Prepare,
    options: config_lib.Data,
    *,
    seed: int,
) -> Callable[[int, int], tf.data.Dataset]:
    """Returns a function that creates the global batches of training, which are the same on all workers.

    Args:
        prepare: prepare(batch, seeds, *, training) -> batch. Rows of `seeds` depend on (seed, epoch, example).
        options: `batch_size`, `shuffle` and `shuffle_buffer`.

    Returns:
        batches(start, stop) -> prepared batches [batch_size, ...] of these steps, repeated endlessly.
    """
    prepare = autograph.convert_prepare(prepare)
    epoch_steps = order.steps_per_epoch(len(source), options.batch_size)
    examples = _number_examples(source)

    @tf.function(autograph=False)
    def prepare_batch(batch: Batch) -> Batch:
        features = {name: value for name, value in batch.items() if name not in (_ID, _EPOCH)}
        return prepare(features, order.seeds(batch[_ID], batch[_EPOCH], seed), training=True)

    def one_epoch(epoch: int) -> tf.data.Dataset:
        shuffled = examples
        if options.shuffle:
            buffer = options.shuffle_buffer or len(source)
            epoch_seed = int(np.random.default_rng([seed, epoch, order.SALT]).integers(2**31))
            shuffled = examples.shuffle(buffer, seed=epoch_seed, reshuffle_each_iteration=False)
        number = tf.constant(epoch, tf.int64)
        add = tf.autograph.experimental.do_not_convert(lambda example: {**example, _EPOCH: number})
        return shuffled.take(epoch_steps * options.batch_size).map(add)

    def batches(start: int, stop: int) -> tf.data.Dataset:
        epoch, skip = divmod(start, epoch_steps)
        last = max(epoch + 1, -(-stop // epoch_steps))  # At least one epoch, even if no step is left.
        dataset = _join([one_epoch(number) for number in range(epoch, last)])
        dataset = dataset.batch(options.batch_size, drop_remainder=True).skip(skip)
        dataset = dataset.map(prepare_batch, num_parallel_calls=tf.data.AUTOTUNE)
        # Endless: with a finite dataset, the workers would ask each other in every step whether all have another batch.
        return dataset.repeat().prefetch(2)

    return batches


def _number_examples(source: Source) -> tf.data.Dataset:
    """Returns all examples, each with its number."""
    read = autograph.convert_read(source)

    @tf.autograph.experimental.do_not_convert
    def load(ids: tf.Tensor) -> Batch:
        return {**read(ids), _ID: ids}

    chunks = tf.data.Dataset.range(len(source)).batch(_CHUNK)
    return chunks.map(load, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _join(datasets: list[tf.data.Dataset]) -> tf.data.Dataset:
    """Concatenates the datasets, as a balanced tree: an element passes through log2(n) of them."""
    while len(datasets) > 1:
        pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
        datasets = [pair[0].concatenate(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return datasets[0]


def _place_in_batch(column: str, at: tuple[int, ...]) -> str:
    return f"{column}{[*at[1:]] or ''} of row {at[0]} of a replica's batch"


def fields(
    make_batches: Callable[[int, int], tf.data.Dataset], shard: ReplicaShard, cluster: Distributor
) -> dict[str, Any]:
    """Returns the fields of a `Feed` that this pipeline sets; `make_batches` is what `training` returned."""

    def open_training(start: int, stop: int) -> Iterator[Any]:
        return cluster.distribute_global(make_batches(start, stop))

    def rows_of_steps(first_number: int, last_number: int) -> Iterator[inspection.Rows]:
        elements = itertools.islice(open_training(first_number - 1, last_number), last_number - first_number + 1)
        for step, element in enumerate(elements, first_number):
            for batch in cluster.strategy.experimental_local_results(element):
                columns = {name: value.numpy() for name, value in batch.items()}
                yield inspection.Rows(step=step, columns=columns, place=_place_in_batch)

    spec = {
        name: tf.TensorSpec([one.shape[0] // shard.num_replicas, *one.shape[1:]], one.dtype)
        for name, one in description.element_spec(make_batches(0, 1)).items()
    }

    def with_known_shapes(step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def known(context: Any, batch: Batch) -> tf.Tensor:
            return step(context, {name: tf.ensure_shape(value, spec[name].shape) for name, value in batch.items()})

        return known

    return {
        "spec": spec,
        "open_training": open_training,
        "first_nonfinite": lambda *numbers: inspection.first_nonfinite(rows_of_steps(*numbers)),
        "with_known_shapes": with_known_shapes,
    }
