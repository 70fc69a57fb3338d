"""Makes the input of a config's run: `config.data.pipeline` and `config.data.shards`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.data import cache, description, inspection, stream
from tfdist.data.feed import Distributor, Examples, Feed, Prepare, Sizes
from tfdist.data.stream import ReplicaShard


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The user's functions and sources; made by `inputs.open_inputs`."""

    # The pipeline: (config, inputs, sizes, shard, cluster) -> the feed of one worker; see `make_feed`.
    make_feed: Callable[..., Feed]
    prepare: Prepare
    # `prepare` and then `config.data.finish`, for `adapt`.
    prepare_all: Prepare
    # Takes the batches that `prepare` returns, and calls `config.data.finish` itself.
    objective: Callable[..., dict[str, tf.Tensor]]
    # adapt(model, read); None: not set.
    adapt: Callable[..., None] | None
    train_source: Any = None
    evaluation_source: Any = None
    # Spec of a batch of the pipeline -> spec of the batch that `config.data.prepare` returns; see `inputs.open_inputs`.
    prepared_spec: Callable[[dict[str, tf.TensorSpec]], dict[str, tf.TensorSpec]] = lambda spec: spec


def make_feed(
    config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: Distributor
) -> Feed:
    """Makes the input of one worker: random access to the examples of its replicas, or global batches (textbook)."""
    options, notes = config.data, ()
    train, evaluation = inputs.train_source, inputs.evaluation_source
    batch_sizes = (sizes.global_batch, sizes.evaluation_batch)
    divided = options.shards != "batch" and cluster.num_workers > 1
    if divided:
        from tfdist.data.fixed_shards import divide

        train = divide(train, shard, options.train_split, options.shards)
        if evaluation is not None:
            evaluation = divide(evaluation, shard, options.evaluation_split, options.shards)
        notes = (_note(cluster.num_workers, options.shards),)
        # The replicas of a worker share batches that no other worker reads.
        shard = dataclasses.replace(shard, first_replica=0, num_replicas=shard.local_replicas)
        batch_sizes = tuple(size // cluster.num_workers for size in batch_sizes)
    train_source = train
    searched = {options.train_split: train, options.evaluation_split: evaluation}
    train = cache.add_cache(options, train, options.train_split)
    evaluation = cache.add_cache(options, evaluation, options.evaluation_split)
    if options.pipeline == "textbook":
        from tfdist.data import textbook

        notes = (textbook.NOTE,)
        training = textbook.training(train, inputs.prepare, options, seed=config.seed)
        pipeline_fields = textbook.fields(training, shard, cluster)
    else:
        ordering = {"seed": config.seed, "global_batch": batch_sizes[0], "shuffle": options.shuffle}
        training = stream.training(train, inputs.prepare, shard, **ordering)
        pipeline_fields = {
            "spec": description.element_spec(training(0, 1)),
            "open_training": lambda start, stop: cluster.distribute(training(start, stop)),
            "first_nonfinite": lambda *numbers: inspection.first_nonfinite(
                inspection.rows_of_steps(training, shard, train_source, options.train_split, *numbers, **ordering)
            ),
        }
    described = inputs.prepared_spec(pipeline_fields["spec"])
    evaluate = functools.partial(
        stream.evaluation, evaluation, inputs.prepare, shard, global_batch=batch_sizes[1], seed=config.seed
    )

    def verify() -> None:
        for source in (inputs.train_source, inputs.evaluation_source):
            getattr(source, "verify", lambda: None)()

    compared = {} if divided else {"train": train, "evaluation": evaluation}
    return Feed(
        sizes=sizes,
        training=training,
        # The dataset is made at the first evaluation: every later one uses a new iterator of it.
        evaluation=None if evaluation is None else functools.cache(evaluate),
        examples=functools.partial(_read_examples, compared, reads_files=shard.first_replica == 0),
        find_label=lambda label: inspection.example_with_label(
            searched, config.objective.get("labels", "label"), label
        ),
        verify=verify,
        preparation=description.describe(options.prepare, described),
        notes=notes,
        first_batch=functools.partial(stream.first_examples, train_source, inputs.prepare_all, seed=config.seed),
        saved=description.to_save(options, inputs.train_source, described),
        **pipeline_fields,
    )


def _read_examples(sources: Mapping[str, Any], count: int, *, reads_files: bool) -> Examples:
    """Reads a few examples of each source, at positions that depend on its length only.

    Args:
        sources: split -> its source, or None.
        reads_files: whether to look at the sizes and times of files: one worker is enough.
    """
    columns, facts, files = {}, {}, {}
    for split, source in sources.items():
        if source is None:
            continue
        ids = np.random.RandomState(0).randint(0, len(source), count, np.int64)
        batch = stream.read_batch(source, ids)
        columns |= {f"{name!r} of the {split} split": value for name, value in batch.items()}
        facts[f"the number of examples of the {split} split"] = len(source)
        if hasattr(source, "fingerprint"):
            facts[f"the fingerprint of the {split} split"] = source.fingerprint()
        if reads_files and hasattr(source, "modified"):
            files[f"sizes or times of the files of the {split} split"] = source.modified()
    return Examples(columns=columns, facts=facts, own=files)


def _note(num_workers: int, shards: str) -> str:
    """Returns the line for the log: what fixed shards cost."""
    return (
        f'config.data.shards="{shards}": each of the {num_workers} workers reads and caches 1/{num_workers} of the '
        "examples. The examples of a batch depend on the number of workers, and so do the weights "
        "(docs/consistency.md)."
    )
