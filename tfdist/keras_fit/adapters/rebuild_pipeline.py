"""Rebuilds a user's `tf.data` pipeline: sharded before its maps, without its shuffles, or with new ones.

In a pipeline that maps examples and then batches them, every worker would map all examples but use only its rows. If
the transformations after the first map do not depend on the examples' content, they are moved before the maps: global
batches of unmapped examples, from which each worker takes and maps its rows. Shuffles keep their seeds and so their
order: the result is bitwise identical.

A shuffle with a seed has another order in each pass. To read from it starts a pass, and the training would get the
order of the next one. Without the shuffles the pipeline has the same batch sizes and the same length, and can be looked
at before training. New shuffles have the same seeds, and their first pass is the first one again.

This reads private attributes of TensorFlow's datasets. If they differ, workers map all examples, after a warning.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import structure
from tensorflow.python.framework import op_def_registry

from tfdist.data import dataset_traits, guard
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base

# (a transformed dataset, other inputs) -> these, transformed in the same way.
Rebuild = Callable[..., tf.data.Dataset]
MAPS = ("_MapDataset", "_ParallelMapDataset")
BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
# Transformations that do not depend on the examples' content -> how to apply them to another dataset.
ELEMENTWISE_AGNOSTIC: dict[str, Rebuild] = {
    "_PrefetchDataset": lambda one, dataset: dataset,
    "_TakeDataset": lambda one, dataset: dataset.take(one._count),
    "_SkipDataset": lambda one, dataset: dataset.skip(one._count),
    "_RepeatDataset": lambda one, dataset: dataset.repeat(one._count),
    "_ShuffleDataset": lambda one, dataset: _shuffle_as(one, dataset),
    "_OptionsDataset": lambda one, dataset: dataset.with_options(one.options()),
}
# Stateful for TensorFlow, but pure here: they depend only on their arguments and on variables that do not change.
_PURE_OPS = {"Assert", "ReadVariableOp", "PartitionedCall", "StatefulPartitionedCall", "If", "Case", "While"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pipeline whose maps are moved to its end."""

    # Global batches of unmapped examples.
    batches: tf.data.Dataset
    # Functions of one example, in order: flat tensors -> flat tensors.
    maps: tuple[Callable[..., Any], ...]
    # Nested tf.TensorSpec of what the last of them returns.
    mapped_spec: Any
    batch_size: int


def split_before_maps(dataset: tf.data.Dataset) -> Split | None:
    """Returns the parts of `dataset`, or None if its maps cannot be moved after its batches."""
    try:
        return _split(dataset)
    except AttributeError as error:
        _warn_once(str(error))
        return None


def _split(dataset: tf.data.Dataset) -> Split | None:
    one, batch, maps = dataset, None, []
    above: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []  # Last transformation first.
    waiting: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []  # Not yet followed by a map.
    while True:
        kind = type(one).__name__
        if kind in ELEMENTWISE_AGNOSTIC:
            waiting.append(lambda below, one=one, how=ELEMENTWISE_AGNOSTIC[kind]: how(one, below))
        elif kind in BATCHES and batch is None:
            batch = one
            waiting.append(lambda below, one=one: batch_as(one, below))
        elif kind in MAPS and batch is not None and _is_pure(one._map_func.function.graph):
            maps.append(one)
            above, waiting = above + waiting, []
        else:
            break
        (one,) = dataset_traits.inputs(one)
    if not maps:
        return None
    (source,) = dataset_traits.inputs(maps[-1])
    specs = tf.nest.flatten(source.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
        return None
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(maps[0].element_spec)):
        return None
    for step in reversed(above):
        source = step(source)
    return Split(
        batches=source,
        maps=tuple(one._map_func.function for one in reversed(maps)),
        mapped_spec=maps[0].element_spec,
        batch_size=int(tf.get_static_value(batch._batch_size)),
    )


def last_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the size of the batches that a pipeline ends with; None: a map or another transformation follows them.

    The first batch is then not read for its size, which would begin a pass of shuffles that cannot be left out.
    """
    while type(dataset).__name__ in ELEMENTWISE_AGNOSTIC:
        (dataset,) = dataset_traits.inputs(dataset)
    size = getattr(dataset, "_batch_size", None) if type(dataset).__name__ in BATCHES else None
    return None if size is None else int(tf.get_static_value(size))


def batch_as(one: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches `dataset` as `one` batches its input."""
    return dataset.batch(one._batch_size, drop_remainder=one._drop_remainder)


def shard_elements(
    parts: Split,
    stream: Callable[[tf.data.Dataset], tf.data.Dataset],
    shard: ReplicaShard,
    unpack: Callable[[Any], Any],
) -> tf.data.Dataset:
    """Returns this worker's elements, equal to those that `base.BatchAdapter` takes from the whole pipeline.

    Args:
        stream: applied to the batches: repeats and skips epochs.
        unpack: applied to the mapped examples of a replica, nested tensors [count, ...].
    """
    spec = parts.batches.element_spec
    # Rows per replica; a smaller shard repeats its last row, which is removed after the maps.
    most = -(-parts.batch_size // shard.num_replicas)

    def rows(*batch: Any) -> tf.data.Dataset:
        batch = batch if isinstance(spec, tuple) else batch[0]
        total = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        replicas = shard.first_replica + tf.range(shard.local_replicas, dtype=tf.int64)
        low, count = base.shard_bounds(replicas, total, shard.num_replicas)
        within = tf.minimum(tf.range(most, dtype=tf.int64), tf.maximum(count, 1)[:, tf.newaxis] - 1)
        ids = tf.reshape(low[:, tf.newaxis] + within, [-1])
        return tf.data.Dataset.from_tensor_slices(
            {
                "data": tf.nest.map_structure(lambda part: tf.gather(part, ids), batch),
                "count": tf.repeat(count, most),
                "total": tf.fill([shard.local_replicas * most], total),
            }
        )

    def map_row(row: dict[str, Any]) -> dict[str, Any]:
        flat = tf.nest.flatten(row["data"])
        for function in parts.maps:
            flat = function(*flat)
            flat = [flat] if tf.is_tensor(flat) else list(flat)
        return row | {"data": structure.from_tensor_list(parts.mapped_spec, flat)}

    def join(group: dict[str, Any]) -> dict[str, Any]:
        count, total = group["count"][0], group["total"][0]
        data = tf.nest.map_structure(lambda part: part[: tf.maximum(count, 1)], group["data"])
        return {"data": unpack(data), "count": count, "total": total}

    own_rows = stream(parts.batches).flat_map(tf.autograph.experimental.do_not_convert(rows))
    map_row, join = tf.autograph.experimental.do_not_convert(map_row), tf.autograph.experimental.do_not_convert(join)
    own_rows = own_rows.map(map_row, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return own_rows.batch(most, drop_remainder=True).map(join)


def _is_pure(graph: tf.Graph) -> bool:
    """Returns True if a function depends only on its arguments and has no side effects."""
    called = {function.signature.name for function in graph.as_graph_def().library.function}
    return not any(_is_stateful(op) for op in guard.called_ops(graph) if op not in _PURE_OPS | called)


def _is_stateful(op: str) -> bool:
    known = op_def_registry.get(op)
    if known is None:
        _warn_once(f"unknown op {op}")
    return known is None or known.is_stateful


def _warn_once(reason: str) -> None:
    """Prints one warning per process: pipelines of one script fail for the same reason."""
    messages.say_once(
        "WARNING: every worker maps all examples of a tf.data.Dataset, because it cannot be sharded before its maps "
        f"with TensorFlow {tf.__version__}: {reason}",
        key="rebuild_pipeline",
    )


class _ShuffleDataset(dataset_ops.UnaryUnchangedStructureDataset):
    """A shuffle that `_shuffle_as` makes; other functions know shuffles by this name."""


def _shuffle_as(one: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Shuffles `dataset` as the shuffle `one` does, from its first pass on."""
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=one._buffer_size,
        seed=one._seed,
        seed2=one._seed2,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=one._reshuffle_each_iteration,
        **dataset._common_args,
    )
    made = _ShuffleDataset(dataset, variant)
    made._buffer_size, made._seed, made._seed2 = one._buffer_size, one._seed, one._seed2
    made._reshuffle_each_iteration = one._reshuffle_each_iteration
    return made


def without_shuffles(dataset: tf.data.Dataset, *, counted: bool = True) -> tf.data.Dataset:
    """Returns `dataset` without its shuffles; as it is, if a transformation of another kind follows one of them.

    Args:
        counted: whether its length is asked for: of datasets that are read in turn, it is known of endless ones.
    """
    turns = {} if counted and not ends_by_choice(dataset) else {_TURNS: _take_turns}
    try:
        return _rebuild(dataset, _KINDS | _BRANCHES | turns | {"_ShuffleDataset": lambda one, below: below})
    except (AttributeError, KeyError):
        return dataset


def with_new_shuffles(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns a copy of `dataset` with new shuffles.

    None if another shuffle, or a transformation of another kind, follows one of them.
    """
    try:
        return _rebuild(dataset, _KINDS | {"_ShuffleDataset": _shuffle_anew})
    except (AttributeError, KeyError):
        return None


def _rebuild(dataset: tf.data.Dataset, kinds: dict[str, Rebuild]) -> tf.data.Dataset:
    if not _has_shuffle(dataset):
        return dataset
    kind, inputs = type(dataset).__name__, [_rebuild(one, kinds) for one in dataset_traits.inputs(dataset)]
    if kind == "_ZipDataset":
        return tf.data.Dataset.zip(tf.nest.pack_sequence_as(dataset._datasets, inputs))
    return kinds[kind](dataset, *inputs)


def ends_by_choice(dataset: tf.data.Dataset) -> bool:
    """Returns whether a choice of datasets, which are endless, may end: TensorFlow takes that for endless, too."""
    kind, inputs = type(dataset).__name__, dataset_traits.inputs(dataset)
    if kind == "_RepeatDataset" and tf.get_static_value(dataset._count) < 0:
        return False
    if kind == _TURNS:
        return int(inputs[0].cardinality()) != tf.data.INFINITE_CARDINALITY and all(
            int(one.cardinality()) == tf.data.INFINITE_CARDINALITY for one in inputs[1:]
        )
    return len(inputs) == 1 and ends_by_choice(inputs[0])


def _take_turns(one: Any, choice: tf.data.Dataset, *given: tf.data.Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.choose_from_datasets(list(given), choice, stop_on_empty_dataset=False)


def _has_shuffle(dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__ == "_ShuffleDataset" or any(
        _has_shuffle(one) for one in dataset_traits.inputs(dataset)
    )


def _calling(function: Any, spec: Any) -> Callable[..., Any]:
    """Returns a function of an element's parts that calls a traced function of its tensors."""

    @tf.autograph.experimental.do_not_convert
    def call(*parts: Any) -> Any:
        results = function(*tf.nest.flatten(parts, expand_composites=True))
        return structure.from_tensor_list(spec, tf.nest.flatten(results))

    return call


def _map_as(one: Any, below: tf.data.Dataset) -> tf.data.Dataset:
    parallel = type(one).__name__ == "_ParallelMapDataset"
    options = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True} if parallel else {}
    return below.map(_calling(one._map_func.function, one.element_spec), **options)


def _shuffle_anew(one: Any, below: tf.data.Dataset) -> tf.data.Dataset:
    if _has_shuffle(below):  # A pass that is skipped would take no seeds from it.
        raise KeyError(one)
    return _shuffle_as(one, below)


_KINDS: dict[str, Rebuild] = {
    **ELEMENTWISE_AGNOSTIC,
    **dict.fromkeys(BATCHES, batch_as),
    **dict.fromkeys(MAPS, _map_as),
    "_FilterDataset": lambda one, below: below.filter(_calling(one._predicate.function, tf.TensorSpec([], tf.bool))),
    "CacheDataset": lambda one, below: below,
}
# Datasets that are read one after another, and in turn, also by `sample_from_datasets`.
_BRANCHES = {"_ConcatenateDataset": lambda one, first, second: first.concatenate(second)}
_TURNS = "_DirectedInterleaveDataset"
