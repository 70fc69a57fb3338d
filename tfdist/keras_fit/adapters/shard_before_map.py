"""Lets each worker do its share of the work of a `tf.data` pipeline: rows are chosen before they are worked on.

Whoever maps examples and then puts them into batches has every worker map all of them, although each needs its rows
alone. Where what follows the first of these maps looks at no example's content, it is put in front of the maps: whole
batches of examples that are not yet mapped, of which the worker's rows are. Shuffles keep their seeds, and so their
order: what comes out is the same to the bit.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import structure
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_dataset_ops

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base, inspect_dataset

_MAPS = ("_MapDataset", "_ParallelMapDataset")
_BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
# What looks at no example: how it is done to another dataset.
_BLIND: dict[str, Callable[[Any, tf.data.Dataset], tf.data.Dataset]] = {
    "_PrefetchDataset": lambda one, dataset: dataset,
    "_TakeDataset": lambda one, dataset: dataset.take(one._count),
    "_SkipDataset": lambda one, dataset: dataset.skip(one._count),
    "_RepeatDataset": lambda one, dataset: dataset.repeat(one._count),
    "_ShuffleDataset": lambda one, dataset: _shuffled(one, dataset),
    "_OptionsDataset": lambda one, dataset: dataset.with_options(one._options_attr),
}
# Stateful for TensorFlow, and yet no more than functions of what they are given, or of what nobody changes.
_HARMLESS = {"Assert", "ReadVariableOp", "PartitionedCall", "StatefulPartitionedCall", "If", "Case", "While"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A pipeline in two parts."""

    # Whole batches of examples that are not yet mapped.
    batches: tf.data.Dataset
    # Of examples: flat tensors -> flat tensors, in their order.
    maps: tuple[Callable[..., Any], ...]
    # The structure of what the last of them returns.
    mapped_spec: Any
    batch_size: int


def split_before_maps(dataset: tf.data.Dataset) -> Split | None:
    """Returns the parts of `dataset`, or None where its maps cannot be put behind its batches."""
    try:
        return _split(dataset)
    except AttributeError:  # Another TensorFlow keeps another account of what a dataset is made of.
        return None


def _split(dataset: tf.data.Dataset) -> Split | None:
    one, batch, maps = dataset, None, []
    above: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []  # From the end on.
    waiting: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []  # Below the lowest map so far.
    while True:
        kind = type(one).__name__
        if kind in _BLIND:
            waiting.append(lambda below, one=one, how=_BLIND[kind]: how(one, below))
        elif kind in _BATCHES and batch is None:
            batch = one
            waiting.append(lambda below, one=one: below.batch(one._batch_size, drop_remainder=one._drop_remainder))
        elif kind in _MAPS and batch is not None and _is_pure(one._map_func.function.graph):
            maps.append(one)
            above, waiting = above + waiting, []
        else:
            break
        one = one._input_dataset
    if not maps:
        return None
    source = maps[-1]._input_dataset
    if not all(_can_be_batched(spec) for spec in tf.nest.flatten(source.element_spec)):
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


def sharded_elements(
    parts: Split,
    stream: Callable[[tf.data.Dataset], tf.data.Dataset],
    share: ReplicaShard,
    finish: Callable[[Any], Any],
) -> tf.data.Dataset:
    """Returns this worker's elements, as `feeds.Batches` makes them of the whole pipeline.

    Args:
        stream: what is done to the batches, as epochs follow each other.
        finish: what is done to a replica's mapped examples.
    """
    spec = parts.batches.element_spec
    # Of each replica; one whose share is smaller has its last example again, which goes before it is seen.
    most = -(-parts.batch_size // share.num_replicas)

    def rows(*batch: Any) -> tf.data.Dataset:
        batch = batch if isinstance(spec, tuple) else batch[0]
        total = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        replicas = share.first_replica + tf.range(share.local_replicas, dtype=tf.int64)
        low, count = base.shard_bounds(replicas, total, share.num_replicas)
        within = tf.minimum(tf.range(most, dtype=tf.int64), tf.maximum(count, 1)[:, tf.newaxis] - 1)
        ids = tf.reshape(low[:, tf.newaxis] + within, [-1])
        return tf.data.Dataset.from_tensor_slices(
            {
                "data": tf.nest.map_structure(lambda part: tf.gather(part, ids), batch),
                "count": tf.repeat(count, most),
                "total": tf.fill([share.local_replicas * most], total),
            }
        )

    def mapped(row: dict[str, Any]) -> dict[str, Any]:
        flat = tf.nest.flatten(row["data"])
        for function in parts.maps:
            flat = function(*flat)
            flat = [flat] if tf.is_tensor(flat) else list(flat)
        return row | {"data": structure.from_tensor_list(parts.mapped_spec, flat)}

    def joined(group: dict[str, Any]) -> dict[str, Any]:
        count, total = group["count"][0], group["total"][0]
        data = tf.nest.map_structure(lambda part: part[: tf.maximum(count, 1)], group["data"])
        return {"data": finish(data), "count": count, "total": total}

    alone = stream(parts.batches).flat_map(tf.autograph.experimental.do_not_convert(rows))
    mapped, joined = tf.autograph.experimental.do_not_convert(mapped), tf.autograph.experimental.do_not_convert(joined)
    alone = alone.map(mapped, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return alone.batch(most, drop_remainder=True).map(joined)


def _is_pure(graph: tf.Graph) -> bool:
    """Whether a function's results depend on its arguments alone, and nothing else on whether it is called."""
    own = {function.signature.name for function in graph.as_graph_def().library.function}
    return not any(_is_stateful(op) for op in inspect_dataset.called_ops(graph) if op not in _HARMLESS | own)


def _is_stateful(op: str) -> bool:
    known = op_def_registry.get(op)
    return known is None or known.is_stateful


def _can_be_batched(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()


def _shuffled(one: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    variant = gen_dataset_ops.shuffle_dataset_v3(
        dataset._variant_tensor,
        buffer_size=one._buffer_size,
        seed=one._seed,
        seed2=one._seed2,
        seed_generator=gen_dataset_ops.dummy_seed_generator(),
        reshuffle_each_iteration=one._reshuffle_each_iteration,
        **dataset._common_args,
    )
    return dataset_ops._VariantDataset(variant, dataset.element_spec)
