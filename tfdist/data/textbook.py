"""`config.data.pipeline = "textbook"`: shuffle, batch and `strategy.experimental_distribute_dataset`.

    dataset.shuffle(n, seed).batch(global_batch, drop_remainder=True)

TensorFlow divides the global batches among the replicas, by an auto-shard policy. Each epoch has a shuffle with its
own seed, so that a resume starts with the interrupted epoch and skips the batches before its step.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.data import autograph, description, inspection, order, pipelines, stream
from tfdist.data.feed import Batch, Feed, Prepare, Sizes
from tfdist.data.pipelines import Inputs
from tfdist.data.stream import ReplicaShard, Source

# Entries of an example besides its features: its number, and the epoch.
ID, _EPOCH = "tfdist example", "tfdist epoch"
# Examples that a source reads at a time.
_CHUNK = 256


def training(
    source: Source,
    prepare: Prepare,
    options: config_lib.Data,
    *,
    num_workers: int,
    seed: int,
    numbered: bool = False,
) -> Callable[[int, int], tuple[tf.data.Dataset, int]]:
    """Returns a function that creates the global batches of training, which are the same on all workers.

    Args:
        prepare: prepare(batch, seeds, *, training) -> batch. Rows of `seeds` depend on (seed, epoch, example).
        options: `batch_size`, `shuffle`, `shuffle_buffer` and `auto_shard`.
        num_workers: workers among which TensorFlow divides them.
        numbered: the batches also have the numbers of their examples, as `ID`.

    Returns:
        batches(start, stop) -> (dataset, drop): prepared batches [batch_size, ...] of these steps, repeated
        endlessly, after `drop` steps that the workers must take and drop.
    """
    prepare = autograph.convert_prepare(prepare)
    epoch_steps = order.steps_per_epoch(len(source), options.batch_size)
    examples = _number_examples(source)

    @tf.function(autograph=False)
    def prepare_batch(batch: Batch) -> Batch:
        features = {name: value for name, value in batch.items() if name not in (ID, _EPOCH)}
        prepared_batch = prepare(features, order.seeds(batch[ID], batch[_EPOCH], seed), training=True)
        return {**prepared_batch, ID: batch[ID]} if numbered else prepared_batch

    def one_epoch(epoch: int) -> tf.data.Dataset:
        shuffled = examples
        if options.shuffle:
            buffer = options.shuffle_buffer or len(source)
            epoch_seed = int(np.random.default_rng([seed, epoch, order.SALT]).integers(2**31))
            shuffled = examples.shuffle(buffer, seed=epoch_seed, reshuffle_each_iteration=False)
        number = tf.constant(epoch, tf.int64)
        add = tf.autograph.experimental.do_not_convert(lambda example: {**example, _EPOCH: number})
        return shuffled.take(epoch_steps * options.batch_size).map(add)

    def batches(start: int, stop: int) -> tuple[tf.data.Dataset, int]:
        # The steps in which a worker uses up one of its global batches. At the start of each group of as many epochs,
        # it has used up whole batches.
        per_batch = num_workers if options.auto_shard == "hint" else 1
        epoch = start // epoch_steps // per_batch * per_batch
        skip, drop = divmod(start - epoch * epoch_steps, per_batch)
        last = max(epoch + 1, -(-stop // epoch_steps))  # There are batches after the last step, too.
        last += (epoch - last) % per_batch
        dataset = _join([one_epoch(number) for number in range(epoch, last)])
        if options.auto_shard == "hint" and num_workers > 1:
            hint = tf.data.experimental.SHARD_HINT
            dataset = dataset.shard(hint, hint)
        dataset = dataset.batch(options.batch_size, drop_remainder=True).skip(skip)
        dataset = dataset.map(prepare_batch, num_parallel_calls=tf.data.AUTOTUNE)
        # Endless: with a finite dataset, the workers would communicate in every step whether all have another batch.
        return dataset.repeat().prefetch(2), drop

    return batches


def _number_examples(source: Source) -> tf.data.Dataset:
    """Returns all examples, each with its number."""
    read = autograph.convert_read(source)

    @tf.autograph.experimental.do_not_convert
    def load(ids: tf.Tensor) -> Batch:
        return {**read(ids), ID: ids}

    chunks = tf.data.Dataset.range(len(source)).batch(_CHUNK)
    return chunks.map(load, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _join(datasets: list[tf.data.Dataset]) -> tf.data.Dataset:
    """Concatenates the datasets, as a balanced tree: an element passes through log2(n) of them."""
    while len(datasets) > 1:
        pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
        datasets = [pair[0].concatenate(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return datasets[0]


def note(options: config_lib.Data, num_workers: int) -> str:
    """Returns the line for the log: what the textbook pipeline costs."""
    prepared = f"1/{num_workers}" if options.auto_shard == "hint" else "all"
    return (
        f'config.data.pipeline="textbook", auto_shard="{options.auto_shard}": each worker reads all examples '
        f"and prepares {prepared} of them; a resume rereads the interrupted epoch up to its step (docs/consistency.md)."
    )


def _rows_of_batches(
    batches: Iterable[Sequence[Batch]], source: Any, split: str, first_number: int
) -> Iterator[inspection.Rows]:
    """Yields this worker's examples of the steps from `first_number` on, counted from 1; batches hold their numbers.

    Args:
        batches: for each step, the batches of this worker's replicas.
        first_number: the step of the first of `batches`.
    """
    whole = order.WorkerExamples(total=0)
    for step, replicas in enumerate(batches, first_number):
        for batch in replicas:
            columns = {name: value.numpy() for name, value in batch.items() if name != ID}
            place = functools.partial(inspection.describe_place, source, split, batch[ID].numpy(), whole)
            yield inspection.Rows(step=step, columns=columns, place=place)


def make_feed(
    config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: pipelines.Distributor
) -> Feed:
    """Makes the input of one worker; as `pipelines.make_stream_feed`."""
    options, train_source = config.data, inputs.train_source
    train, train_prepare = pipelines.add_cache(options, train_source, inputs.prepare, training=True)
    evaluation, evaluation_prepare = pipelines.add_cache(
        options, inputs.evaluation_source, inputs.prepare, training=False
    )
    make_training = functools.partial(
        training, train, train_prepare, options, num_workers=cluster.num_workers, seed=config.seed
    )
    make_batches = make_training()

    def open_training(start: int, stop: int, make_batches: Callable[..., Any] = make_batches) -> Iterator[Any]:
        dataset, drop = make_batches(start, stop)
        return cluster.distribute_global(dataset, options.auto_shard, drop)

    def rows_of_steps(first_number: int, last_number: int) -> Iterator[inspection.Rows]:
        elements = open_training(first_number - 1, last_number, make_training(numbered=True))
        batches = map(
            cluster.strategy.experimental_local_results, itertools.islice(elements, last_number - first_number + 1)
        )
        return _rows_of_batches(batches, train_source, options.train_split, first_number)

    spec = {
        name: tf.TensorSpec([one.shape[0] // shard.num_replicas, *one.shape[1:]], one.dtype)
        for name, one in description.element_spec(make_batches(0, 1)[0]).items()
    }

    def with_known_shapes(step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def known(context: Any, batch: Batch) -> tf.Tensor:
            return step(context, {name: tf.ensure_shape(value, spec[name].shape) for name, value in batch.items()})

        return known

    return pipelines.make_with_parts(
        config,
        inputs,
        lambda: stream.evaluation(
            evaluation, evaluation_prepare, shard, global_batch=sizes.evaluation_batch, seed=config.seed
        ),
        {"train": train, "evaluation": evaluation},
        rows_of_steps,
        spec=spec,
        reads_files=shard.first_replica == 0,
        sizes=sizes,
        training=lambda start, stop: make_batches(start, stop)[0],
        open_training=open_training,
        first_examples=functools.partial(stream.first_examples, train, seed=config.seed),
        with_known_shapes=with_known_shapes,
        notes=(note(options, cluster.num_workers),),
    )
