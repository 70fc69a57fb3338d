"""Makes the input of a config's run: `config.data.pipeline` and `config.data.shards`."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.data import cache, description, fixed_shards, inspection, stream, textbook
from tfdist.data.feed import About, Batch, Feed, Sizes
from tfdist.data.inputs import Inputs
from tfdist.data.stream import ReplicaShard


class Distributor(Protocol):
    """The methods of `tfdist.cluster.cluster.Cluster` that a pipeline uses."""

    num_workers: int

    def distribute(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Returns an iterator over this worker's elements, one per local replica and step."""

    def distribute_global(self, dataset: tf.data.Dataset, policy: str, drop: int) -> Iterator[Any]:
        """Returns an iterator over global batches, which TensorFlow divides among all replicas."""

    def local_values(self, value: Any) -> tuple[Any, ...]:
        """Returns the parts of an iterator's element that belong to this worker's replicas."""


def make_feed(
    config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: Distributor
) -> Feed:
    """Makes the input of one worker.

    Args:
        config: of the run.
        inputs: with the sources of both splits: a `Source`, or a `DatasetSource` with the textbook pipeline.
        sizes: of the run.
        shard: the replicas of this worker.
        cluster: distributes datasets.

    Raises:
        ValueError: the config contradicts the data, or `prepare` returns what cannot be batched.
    """
    make = _make_textbook_feed if config.data.pipeline == "textbook" else _make_stream_feed
    return make(config, inputs, sizes, shard, cluster)


def _combine(
    config: config_lib.Config,
    inputs: Inputs,
    evaluate: Callable[[], tuple[tf.data.Dataset, int]],
    compared: Mapping[str, Any],
    rows_of_steps: Callable[[int, int], Iterable[inspection.Rows]],
    *,
    spec: dict[str, tf.TensorSpec],
    reads_files: bool,
    notes: tuple[str, ...],
    **fields: Any,
) -> Feed:
    """Makes a `Feed` of the parts in which the two pipelines differ.

    Args:
        config: of the run.
        inputs: with the sources of both splits.
        evaluate: makes the dataset of an evaluation, if there is a split for it.
        compared: split -> its source: all workers must read the same examples from it.
        rows_of_steps: (first_number, last_number), counted from 1 -> this worker's examples of these steps.
        spec: shapes and dtypes of the batch of a replica.
        reads_files: whether this worker looks at the sizes and times of files.
        notes: warnings.
        fields: other fields of the `Feed`.
    """
    options, splits = config.data, (inputs.train_source, inputs.evaluation_source)
    by_name = dict(zip((options.train_split, options.evaluation_split), splits, strict=True))

    def verify() -> None:
        for source in splits:
            getattr(source, "verify", lambda: None)()

    return Feed(
        spec=spec,
        # The dataset is made at the first evaluation: every later one uses a new iterator of it.
        evaluation=None if inputs.evaluation_source is None else functools.cache(evaluate),
        examples=functools.partial(inspection.read_examples, compared, reads_files=reads_files),
        first_nonfinite=lambda *numbers: inspection.first_nonfinite(rows_of_steps(*numbers)),
        find_label=functools.partial(inspection.example_with_label, by_name, config.objective.get("labels", "label")),
        verify=verify,
        about=About(
            preparation=description.describe(options.prepare, spec),
            example_name="images" if "image" in spec else "examples",
            notes=notes,
            saved=description.saved(inputs.train_source, spec),
        ),
        **fields,
    )


def _make_stream_feed(
    config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: Distributor
) -> Feed:
    """The default: random access to the examples of this worker's replicas."""
    options, parts, notes = config.data, (None, None), ()
    train, evaluation, batches = (
        inputs.train_source,
        inputs.evaluation_source,
        (sizes.global_batch, sizes.evaluation_batch),
    )
    reads_files = shard.first_replica == 0
    if options.shards != "batch" and cluster.num_workers > 1:
        train, train_part = fixed_shards.divide(train, shard, options.train_split, options.shards)
        evaluation, evaluation_part = fixed_shards.divide(evaluation, shard, options.evaluation_split, options.shards)
        parts, notes = (train_part, evaluation_part), (fixed_shards.note(cluster.num_workers, options.shards),)
        shard, batches = fixed_shards.local_shard(shard), tuple(size // cluster.num_workers for size in batches)
    train_source = train
    train, train_prepare = cache.cached(options, train, inputs.prepare, training=True)
    evaluation, evaluation_prepare = cache.cached(options, evaluation, inputs.prepare, training=False)
    ordering = {"seed": config.seed, "global_batch": batches[0], "shuffle": options.shuffle, "part": parts[0]}
    training = stream.training(train, train_prepare, shard, **ordering)
    searched = (training, shard, train_source, options.train_split)
    return _combine(
        config,
        inputs,
        lambda: stream.evaluation(
            evaluation, evaluation_prepare, shard, global_batch=batches[1], seed=config.seed, part=parts[1]
        ),
        {} if notes else {"train": train, "evaluation": evaluation},
        functools.partial(inspection.rows_of_steps, *searched, **ordering),
        spec=description.element_spec(training(0, 1)),
        reads_files=reads_files,
        sizes=sizes,
        training=training,
        open_training=lambda start, stop: cluster.distribute(training(start, stop)),
        first_examples=functools.partial(stream.first_examples, train_source, seed=config.seed),
        notes=notes,
    )


def _make_textbook_feed(
    config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: Distributor
) -> Feed:
    options, train_source, evaluation = config.data, inputs.train_source, inputs.evaluation_source
    train, train_prepare, first_examples = train_source, inputs.prepare, textbook.first_examples
    evaluation_prepare, evaluate = inputs.prepare, textbook.evaluation
    if isinstance(train, textbook.DatasetSource):
        if options.cache != "none":
            raise ValueError(
                f"config.data.cache={options.cache!r} needs random access: call Dataset.cache() in your source."
            )
    else:
        if options.auto_shard == "file":
            raise ValueError(
                'config.data.auto_shard="file" needs a source that returns a tf.data.Dataset of files, but '
                f'{options.source["target"]} has random access: set it to "data".'
            )
        first_examples, evaluate = stream.first_examples, stream.evaluation
        train, train_prepare = cache.cached(options, train, inputs.prepare, training=True)
        evaluation, evaluation_prepare = cache.cached(options, evaluation, inputs.prepare, training=False)
    make_training = functools.partial(
        textbook.training, train, train_prepare, options, num_workers=cluster.num_workers, seed=config.seed
    )
    training = make_training()

    def open_training(start: int, stop: int, training: Callable[..., Any] = training) -> Iterator[Any]:
        dataset, drop = training(start, stop)
        return cluster.distribute_global(dataset, options.auto_shard, drop)

    def rows_of_steps(first_number: int, last_number: int) -> Iterator[inspection.Rows]:
        elements = open_training(first_number - 1, last_number, make_training(numbered=True))
        batches = map(cluster.local_values, itertools.islice(elements, last_number - first_number + 1))
        return inspection.rows_of_batches(batches, train_source, options.train_split, textbook.ID, first_number)

    spec = {
        name: tf.TensorSpec([one.shape[0] // shard.num_replicas, *one.shape[1:]], one.dtype)
        for name, one in description.element_spec(training(0, 1)[0]).items()
    }

    def with_known_shapes(step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def known(context: Any, batch: Batch) -> tf.Tensor:
            return step(context, {name: tf.ensure_shape(value, spec[name].shape) for name, value in batch.items()})

        return known

    return _combine(
        config,
        inputs,
        lambda: evaluate(evaluation, evaluation_prepare, shard, global_batch=sizes.evaluation_batch, seed=config.seed),
        {"train": train, "evaluation": evaluation},
        rows_of_steps,
        spec=spec,
        reads_files=shard.first_replica == 0,
        sizes=sizes,
        training=lambda start, stop: training(start, stop)[0],
        open_training=open_training,
        first_examples=functools.partial(first_examples, train, seed=config.seed),
        with_known_shapes=with_known_shapes,
        notes=(textbook.note(options, cluster.num_workers), *textbook.caveats(train)),
    )
