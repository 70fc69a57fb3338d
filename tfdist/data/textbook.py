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
from tfdist.data import autograph, dataset_traits, description, inspection, order, pipelines, read_ahead, stream
from tfdist.data.feed import Batch, Feed, Prepare, Sizes
from tfdist.data.pipelines import Inputs, Pipeline
from tfdist.data.stream import ReplicaShard, Source

# Entries of an example besides its features: its number, and the epoch.
ID, _EPOCH = "tfdist example", "tfdist epoch"
# Examples that a source reads at a time.
_CHUNK = 256


class DatasetSource:
    """A `tf.data.Dataset` of the user's: single examples, in the same order in every pass and on every worker."""

    def __init__(self, dataset: tf.data.Dataset, name: str):
        """Counts the examples by a pass, if their number is not known.

        Raises:
            ValueError: the dataset shuffles, has any order, never ends, or its elements are no single examples.
        """
        traits, dataset = dataset_traits.find(dataset), dataset_traits.in_order(dataset)
        if traits.order_unknown:
            raise ValueError(f"{name}: {traits.order_unknown}")
        if traits.shuffles:
            raise ValueError(
                f"{name}: the tf.data.Dataset shuffles, so that a resume would read another order: remove shuffle(), "
                "and pass shuffle=False to list_files() or keras.utils.image_dataset_from_directory(). tfdist shuffles "
                "each epoch: config.data.shuffle."
            )
        specs = tf.nest.flatten(dataset.element_spec)
        if specs and all(one.shape.rank is not None and one.shape.rank > 0 and one.shape[0] is None for one in specs):
            raise ValueError(
                f"{name}: the tf.data.Dataset has batches, and must have single examples: remove batch(), and pass "
                "batch_size=None to keras.utils.image_dataset_from_directory(). tfdist batches: config.data.batch_size."
            )
        # Why a resume may read other examples; None: it does not.
        self.resume_caveat = traits.resume_caveat
        spec = dataset.element_spec
        self.dataset = dataset.map(_name_parts) if isinstance(spec, tuple) and len(spec) == 2 else dataset
        spec = self.dataset.element_spec
        if not isinstance(spec, dict) or not all(isinstance(one, tf.TensorSpec) for one in spec.values()):
            raise ValueError(
                f"{name}: the tf.data.Dataset must have elements (image, label) or dicts of tensors, of one example "
                f"each, and ragged ones padded to one length. Received: {dataset.element_spec}"
            )
        length = int(dataset.cardinality())
        if length == tf.data.INFINITE_CARDINALITY:
            raise ValueError(f"{name}: the tf.data.Dataset never ends: remove repeat(), which tfdist does.")
        if length == tf.data.UNKNOWN_CARDINALITY:
            length = int(dataset.reduce(np.int64(0), lambda total, *_: total + 1))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def read(self, ids: tf.Tensor) -> Batch:
        """Raises a ValueError: the examples have no random access."""
        raise ValueError(
            "config.data.source returns a tf.data.Dataset, which has no random access: it can be used to train and to "
            'evaluate, with config.data.pipeline="textbook".'
        )

    def find(self, number: int) -> tuple[int, Batch]:
        """Returns the position, counted from 0, and the content of the example whose number is `number`."""
        same = self.dataset.enumerate().filter(lambda position, example: tf.equal(_hash(example), number))
        position, example = next(iter(same))
        return int(position), example

    def first_rows(self, count: int) -> Batch:
        """Returns the first `count` examples, or all."""
        return next(iter(self.dataset.batch(count)))


def training(
    source: Source | DatasetSource,
    prepare: Prepare,
    options: config_lib.Data,
    *,
    num_workers: int,
    seed: int,
    numbered: bool = False,
) -> Callable[[int, int], tuple[tf.data.Dataset, int]]:
    """Returns a function that creates the global batches of training, which are the same on all workers.

    Args:
        prepare: prepare(batch, seeds, *, training) -> batch. Rows of `seeds` depend on (seed, epoch, example);
            the number of an example of a `DatasetSource` is a hash of its content.
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
        per_batch = _steps_per_batch(source, options, num_workers)
        epoch, skip, drop = _start(start, epoch_steps, per_batch)
        last = max(epoch + 1, -(-stop // epoch_steps))  # There are batches after the last step, too.
        last += (epoch - last) % (per_batch or 1)  # Each worker's examples are whole batches.
        dataset = _join([one_epoch(number) for number in range(epoch, last)])
        if options.auto_shard == "hint" and num_workers > 1:
            hint = tf.data.experimental.SHARD_HINT
            dataset = dataset.shard(hint, hint)
        dataset = dataset.batch(options.batch_size, drop_remainder=True).skip(skip)
        dataset = dataset.map(prepare_batch, num_parallel_calls=tf.data.AUTOTUNE)
        # Endless: with a finite dataset, the workers would communicate in every step whether all have another batch.
        return dataset.repeat().prefetch(2), drop

    return batches


def _number_examples(source: Source | DatasetSource) -> tf.data.Dataset:
    """Returns all examples, each with its number."""
    if isinstance(source, DatasetSource):
        # By their content: counted, examples could not be sharded by files.
        return source.dataset.map(lambda example: {**example, ID: _hash(example)}, num_parallel_calls=tf.data.AUTOTUNE)
    read = autograph.convert_read(source)

    @tf.autograph.experimental.do_not_convert
    def load(ids: tf.Tensor) -> Batch:
        return {**read(ids), ID: ids}

    chunks = tf.data.Dataset.range(len(source)).batch(_CHUNK)
    return chunks.map(load, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _steps_per_batch(source: Source | DatasetSource, options: config_lib.Data, num_workers: int) -> int | None:
    """Returns the steps in which a worker uses up one of its global batches; None: not known before it reads them."""
    if num_workers == 1 or options.auto_shard == "data":
        return 1
    if options.auto_shard == "hint":
        return num_workers
    return None if isinstance(source, DatasetSource) else 1  # "auto": by data, as there are no files to shard.


def _start(start: int, epoch_steps: int, steps_per_batch: int | None) -> tuple[int, int, int]:
    """Returns the epoch with which to start, the batches of a worker to skip in it, and the steps to drop then."""
    if steps_per_batch is None:
        return 0, 0, start
    # At the start of each group of this many epochs, a worker has used up whole batches.
    epoch = start // epoch_steps // steps_per_batch * steps_per_batch
    return epoch, *divmod(start - epoch * epoch_steps, steps_per_batch)


def _join(datasets: list[tf.data.Dataset]) -> tf.data.Dataset:
    """Concatenates the datasets, as a balanced tree: an element passes through log2(n) of them."""
    while len(datasets) > 1:
        pairs = [datasets[i : i + 2] for i in range(0, len(datasets), 2)]
        datasets = [pair[0].concatenate(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return datasets[0]


@tf.autograph.experimental.do_not_convert
def _name_parts(image: tf.Tensor, label: tf.Tensor) -> Batch:
    return {"image": image, "label": label}


@tf.autograph.experimental.do_not_convert
def _hash(example: Batch) -> tf.Tensor:
    content = tf.strings.join([tf.io.serialize_tensor(example[name]) for name in sorted(example)])
    return tf.strings.to_hash_bucket_fast(content, 2**62)


def first_examples(source: DatasetSource, prepare: Prepare, count: int, *, seed: int) -> Batch:
    """Returns the first `count` examples (or all), prepared without augmentation."""
    rows = source.first_rows(count)
    ids = tf.range(len(next(iter(rows.values()))), dtype=tf.int64)
    return prepare(rows, order.seeds(ids, tf.zeros([], tf.int64), seed), training=False)


def make_evaluation(
    source: DatasetSource, prepare: Prepare, shard: ReplicaShard, *, global_batch: int, seed: int
) -> tuple[tf.data.Dataset, int]:
    """Returns the evaluation dataset of one worker, as `stream.evaluation` does; every worker reads all examples."""
    size = global_batch // shard.num_replicas
    prepare = autograph.convert_prepare(prepare)

    @tf.autograph.experimental.do_not_convert
    def load(local: tf.Tensor, number: tf.Tensor, batch: Batch) -> tuple[Batch, tf.Tensor]:
        count = tf.shape(next(iter(batch.values())), out_type=tf.int64)[0]
        slots = (shard.first_replica + local) * size + tf.range(size, dtype=tf.int64)
        rows = tf.minimum(slots, count - 1)
        part = {name: tf.gather(value, rows) for name, value in batch.items()}
        seeds = order.seeds(number * global_batch + rows, tf.zeros([], tf.int64), seed)
        return prepare(part, seeds, training=False), slots < count

    @tf.autograph.experimental.do_not_convert
    def of_replicas(number: tf.Tensor, batch: Batch) -> tf.data.Dataset:
        return tf.data.Dataset.range(shard.local_replicas).map(functools.partial(load, number=number, batch=batch))

    elements = source.dataset.batch(global_batch).enumerate().flat_map(of_replicas).repeat()
    elements = read_ahead.prefetch(elements, rows=size, local_replicas=shard.local_replicas)
    return elements, -(-len(source) // global_batch)


def caveats(source: Any) -> tuple[str, ...]:
    """Returns why a resume may read other examples, for the log."""
    caveat = getattr(source, "resume_caveat", None)
    return () if caveat is None else (f"An exact resume needs care: {caveat}.",)


def note(options: config_lib.Data, num_workers: int) -> str:
    """Returns the line for the log: what the textbook pipeline costs, and what it cannot do."""
    resume = "a resume reads the interrupted epoch again, up to its step"
    if num_workers == 1:
        return f'config.data.pipeline="textbook": {resume}, where the default continues at once (docs/pipelines.md).'
    costs = {
        "hint": f"each of the {num_workers} workers reads all examples and prepares 1/{num_workers} of them",
        "file": f"each of the {num_workers} workers reads its own files, so weights depend on the number of workers",
    }
    both = f"each of the {num_workers} workers reads and prepares all examples and uses 1/{num_workers} of them"
    return (
        f'config.data.pipeline="textbook", auto_shard="{options.auto_shard}": {costs.get(options.auto_shard, both)}; '
        f"{resume} (docs/pipelines.md)."
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
    options, train_source, evaluation = config.data, inputs.train_source, inputs.evaluation_source
    train, train_prepare, examples = train_source, inputs.prepare, first_examples
    evaluation_prepare, evaluate = inputs.prepare, make_evaluation
    if isinstance(train, DatasetSource):
        if options.cache != "none":
            text = "needs random access: call Dataset.cache() in your source."
            raise ValueError(f"config.data.cache={options.cache!r} {text}")
    else:
        if options.auto_shard == "file":
            raise ValueError(
                'config.data.auto_shard="file" needs a source that returns a tf.data.Dataset of files, but '
                f'{options.source["target"]} has random access: set it to "data".'
            )
        examples, evaluate = stream.first_examples, stream.evaluation
        train, train_prepare = pipelines.add_cache(options, train, inputs.prepare, training=True)
        evaluation, evaluation_prepare = pipelines.add_cache(options, evaluation, inputs.prepare, training=False)
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

    return pipelines.combine(
        config,
        inputs,
        lambda: evaluate(evaluation, evaluation_prepare, shard, global_batch=sizes.evaluation_batch, seed=config.seed),
        {"train": train, "evaluation": evaluation},
        rows_of_steps,
        spec=spec,
        reads_files=shard.first_replica == 0,
        sizes=sizes,
        training=lambda start, stop: make_batches(start, stop)[0],
        open_training=open_training,
        first_examples=functools.partial(examples, train, seed=config.seed),
        with_known_shapes=with_known_shapes,
        notes=(note(options, cluster.num_workers), *caveats(train)),
    )


PIPELINE = Pipeline(
    needs_cluster_first=True,
    open_dataset=lambda dataset, options: DatasetSource(dataset, options.source["target"]),
    make_feed=make_feed,
)
