"""Makes the input pipelines of a config: `config.data.pipeline` and `config.data.shards`."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import batches
from tfdist.data import cache, description, fixed_shards, inspection, stream, textbook
from tfdist.data.stream import Batch, Prepare, ReplicaShard

# () -> the evaluation dataset of one worker, and its steps.
Evaluation = Callable[[], tuple[tf.data.Dataset, int]]


class Distributor(Protocol):
    """The methods of `tfdist.cluster.cluster.Cluster` that a pipeline uses."""

    num_workers: int

    def distribute(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Returns an iterator over this worker's elements, one per local replica and step."""

    def distribute_global(self, dataset: tf.data.Dataset, policy: str, drop: int) -> Iterator[Any]:
        """Returns an iterator over global batches, which TensorFlow divides among all replicas."""

    def local_values(self, value: Any) -> tuple[Any, ...]:
        """Returns the parts of an iterator's element that belong to this worker's replicas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The input of training and evaluation, for one worker."""

    # (first_step, last_step) -> prepared batches of these steps, repeated endlessly: of this worker's replicas, or
    # global ones.
    training: Callable[[int, int], tf.data.Dataset]
    # (first_step, last_step) -> an iterator over them, with an element for all local replicas in each step.
    open_training: Callable[[int, int], Iterator[Any]]
    # None: no evaluation.
    evaluation: Evaluation | None
    # Shapes and dtypes of the batch of one replica.
    spec: dict[str, tf.TensorSpec]
    # Split -> its source: all workers must read the same examples from it.
    compared: Mapping[str, Any]
    # (prepare, count) -> the first examples of the training split; see `stream.first_examples`.
    first_examples: Callable[[Prepare, int], Batch]
    # (first step, last step), counted from 1 -> this worker's examples of these steps, by their numbers in the split.
    rows_of_steps: Callable[[int, int], Iterable[inspection.Rows]]
    # step(context, batch) -> the same step, whose batches have the shapes of `spec`.
    with_known_shapes: Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]] = lambda step: step
    # Lines for the log.
    notes: tuple[str, ...] = ()


def make(
    config: config_lib.Config, prepare: Prepare, train: Any, evaluation: Any, shard: ReplicaShard, cluster: Distributor
) -> Pipelines:
    """Makes the pipelines of one worker.

    Args:
        prepare: prepare(batch, seeds, *, training) -> batch.
        train: the training split: a `Source`, or a `DatasetSource` with the textbook pipeline.
        evaluation: the evaluation split, likewise; None: no evaluation.
        shard: the replicas of this worker.

    Raises:
        ValueError: the config contradicts the data, or `prepare` returns what cannot be batched.
    """
    make_training = _textbook if config.data.pipeline == "textbook" else _replica_shards
    return make_training(config, prepare, train, evaluation, shard, cluster)


def _replica_shards(
    config: config_lib.Config, prepare: Prepare, train: Any, evaluation: Any, shard: ReplicaShard, cluster: Distributor
) -> Pipelines:
    """The default: random access to the examples of this worker's replicas."""
    options, parts, notes = config.data, (None, None), ()
    sizes = options.batch_size, batches.evaluation_batch_size(config)
    if options.shards != "batch" and cluster.num_workers > 1:
        train, train_part = fixed_shards.divide(train, shard, options.train_split, options.shards)
        evaluation, evaluation_part = fixed_shards.divide(evaluation, shard, options.evaluation_split, options.shards)
        parts, notes = (train_part, evaluation_part), (fixed_shards.note(cluster.num_workers, options.shards),)
        shard, sizes = fixed_shards.local_shard(shard), tuple(size // cluster.num_workers for size in sizes)
    train_source = train
    train, train_prepare = cache.cached(options, train, prepare, training=True)
    evaluation, evaluation_prepare = cache.cached(options, evaluation, prepare, training=False)
    ordering = {"seed": config.seed, "global_batch": sizes[0], "shuffle": options.shuffle, "part": parts[0]}
    training = stream.training(train, train_prepare, shard, **ordering)
    searched = (training, shard, train_source, options.train_split)
    evaluate = functools.partial(stream.evaluation, evaluation, evaluation_prepare, shard, part=parts[1])
    return Pipelines(
        training=training,
        open_training=lambda first_step, last_step: cluster.distribute(training(first_step, last_step)),
        evaluation=None if evaluation is None else _once(evaluate, sizes[1], config.seed),
        spec=description.element_spec(training(0, 1)),
        compared={} if notes else {"train": train, "evaluation": evaluation},
        first_examples=functools.partial(stream.first_examples, train_source, seed=config.seed),
        rows_of_steps=functools.partial(inspection.rows_of_steps, *searched, **ordering),
        notes=notes,
    )


def _textbook(
    config: config_lib.Config, prepare: Prepare, train: Any, evaluation: Any, shard: ReplicaShard, cluster: Distributor
) -> Pipelines:
    options, train_source = config.data, train
    if isinstance(train, textbook.DatasetSource):
        if options.cache != "none":
            raise ValueError(
                f"config.data.cache={options.cache!r} needs random access: call Dataset.cache() in your source."
            )
        train_prepare, first_examples = prepare, textbook.first_examples
        evaluate = functools.partial(textbook.evaluation, evaluation, prepare, shard)
    else:
        if options.auto_shard == "file":
            raise ValueError(
                'config.data.auto_shard="file" needs a source that returns a tf.data.Dataset of files, but '
                f'{options.source["target"]} has random access: set it to "data".'
            )
        first_examples = stream.first_examples
        train, train_prepare = cache.cached(options, train, prepare, training=True)
        evaluation, evaluation_prepare = cache.cached(options, evaluation, prepare, training=False)
        evaluate = functools.partial(stream.evaluation, evaluation, evaluation_prepare, shard)
    make_training = functools.partial(
        textbook.training, train, train_prepare, options, num_workers=cluster.num_workers, seed=config.seed
    )
    training = make_training()

    def open_training(first_step: int, last_step: int, training: Callable[..., Any] = training) -> Iterator[Any]:
        dataset, drop = training(first_step, last_step)
        return cluster.distribute_global(dataset, options.auto_shard, drop)

    def rows_of_steps(first_step: int, last_step: int) -> Iterator[inspection.Rows]:
        elements = open_training(first_step - 1, last_step, make_training(numbered=True))
        batches = map(cluster.local_values, itertools.islice(elements, last_step - first_step + 1))
        return inspection.rows_of_batches(batches, train_source, options.train_split, textbook.ID, first_step)

    size = batches.evaluation_batch_size(config)
    spec = {
        name: tf.TensorSpec([one.shape[0] // shard.num_replicas, *one.shape[1:]], one.dtype)
        for name, one in description.element_spec(training(0, 1)[0]).items()
    }

    def with_known_shapes(step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def known(context: Any, batch: Batch) -> tf.Tensor:
            return step(context, {name: tf.ensure_shape(value, spec[name].shape) for name, value in batch.items()})

        return known

    return Pipelines(
        training=lambda first_step, last_step: training(first_step, last_step)[0],
        open_training=open_training,
        evaluation=None if evaluation is None else _once(evaluate, size, config.seed),
        spec=spec,
        compared={"train": train, "evaluation": evaluation},
        first_examples=functools.partial(first_examples, train, seed=config.seed),
        rows_of_steps=rows_of_steps,
        with_known_shapes=with_known_shapes,
        notes=(textbook.note(options, cluster.num_workers), *textbook.caveats(train)),
    )


def _once(evaluate: Callable[..., tuple[tf.data.Dataset, int]], global_batch: int, seed: int) -> Evaluation:
    """Makes the dataset at the first evaluation: every later one uses a new iterator of it."""
    return functools.cache(lambda: evaluate(global_batch=global_batch, seed=seed))
