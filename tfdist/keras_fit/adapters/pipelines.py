"""Changes to the graph of a user's `tf.data` pipeline.

Maps before `batch`, as in `shuffle -> map -> batch`, are moved after it: the pipeline makes global batches of unmapped
examples, and each worker maps its rows of them. Each worker reads every other pipeline as it is, without a prefetch at
its end.
"""

from collections.abc import Callable, Container
from typing import Any

import tensorflow as tf

from tfdist.keras_fit.adapters import dataset_traits

_MAPS = ("_MapDataset", "_ParallelMapDataset")
_BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
# Transformations that may follow a map, because they do not depend on the examples' content -> how to apply them to
# another dataset.
_FREE: dict[str, Callable[[Any, tf.data.Dataset], tf.data.Dataset]] = {
    "_PrefetchDataset": lambda one, dataset: dataset,
    "_OptionsDataset": lambda one, dataset: dataset.with_options(one.options()),
    "_TakeDataset": lambda one, dataset: dataset.take(one._count),
    "_SkipDataset": lambda one, dataset: dataset.skip(one._count),
    "_RepeatDataset": lambda one, dataset: dataset.repeat(one._count),
}
# Stateful for TensorFlow, but pure here: they depend only on their arguments and on variables that do not change.
_PURE_OPS = {"Assert", "ReadVariableOp", "PartitionedCall", "StatefulPartitionedCall", "If", "Case", "While"}
# After a shuffle, these transformations begin its passes, or cache one, only while they are read: an iterator that is
# made and not read has not drawn the seeds of all passes.
_LATE = ("_RepeatDataset", "_ConcatenateDataset", "CacheDataset", "_ShuffleDataset")


def split_before_maps(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[Any], Any]]:
    """Moves the maps of a pipeline after its batches.

    Returns:
        The pipeline of batches of unmapped examples, and the function that maps the rows of a batch one by one, nested
        tensors [rows, ...]. If the maps cannot be moved: `dataset` itself, and a function that returns its argument.
    """
    unchanged = dataset, lambda rows: rows
    # The transformations from the end to the first map.
    chain: list[tf.data.Dataset] = []
    one = dataset
    while _may_be_moved(one, chain):
        chain.append(one)
        (one,) = dataset_traits.inputs(one)
    while chain and not _is_one_of(_MAPS, chain[-1]):
        chain.pop()
    maps = [one for one in chain if _is_one_of(_MAPS, one)]
    if not maps:
        return unchanged
    (batches,) = dataset_traits.inputs(maps[-1])
    specs, mapped_specs = tf.nest.flatten(batches.element_spec), tf.nest.flatten(maps[0].element_spec)
    are_tensors = all(isinstance(spec, tf.TensorSpec) for spec in (*specs, *mapped_specs))
    if not (are_tensors and all(spec.shape.is_fully_defined() for spec in specs)):
        return unchanged
    for one in reversed(chain):
        if _is_one_of(_BATCHES, one):
            batches = batches.batch(one._batch_size, drop_remainder=one._drop_remainder)
        elif one not in maps:
            batches = _FREE[type(one).__name__](one, batches)

    def map_row(flat: list[tf.Tensor]) -> list[tf.Tensor]:
        for one in reversed(maps):
            flat = tf.nest.flatten(_mapped(one)(*flat))
        return flat

    def map_rows(rows: Any) -> Any:
        mapped = tf.map_fn(map_row, tf.nest.flatten(rows), fn_output_signature=mapped_specs)
        return tf.nest.pack_sequence_as(maps[0].element_spec, mapped)

    return batches, map_rows


def _may_be_moved(dataset: tf.data.Dataset, later: list[tf.data.Dataset]) -> bool:
    """Returns whether `split_before_maps` may make a transformation again; `later`: the ones that follow it."""
    is_batched = any(_is_one_of(_BATCHES, one) for one in later)
    if _is_one_of(_MAPS, dataset):
        return is_batched and _is_pure(_mapped(dataset).graph)
    return _is_one_of(_FREE, dataset) or (_is_one_of(_BATCHES, dataset) and not is_batched)


def _is_one_of(kinds: Container[str], dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__ in kinds


def _mapped(dataset: tf.data.Dataset) -> Any:
    """Returns the function of a map."""
    (function,) = dataset_traits.functions(dataset)
    return function


def _is_pure(graph: tf.Graph) -> bool:
    """Returns True if a function depends only on its arguments and has no side effects."""
    called = {function.signature.name for function in graph.as_graph_def().library.function}
    return not any(graph.op_def_for_type(op).is_stateful for op in dataset_traits.ops_of(graph) - _PURE_OPS - called)


def last_batch_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the size of the batches that a pipeline ends with; None: another transformation follows them."""
    while _is_one_of(_FREE, dataset):
        (dataset,) = dataset_traits.inputs(dataset)
    return int(tf.get_static_value(dataset._batch_size)) if _is_one_of(_BATCHES, dataset) else None


def without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a pipeline without the prefetch at its end: the adapters add one that is bounded by bytes."""
    while type(dataset).__name__ == "_PrefetchDataset":
        (dataset,) = dataset_traits.inputs(dataset)
    return dataset


def begins_passes_late(dataset: tf.data.Dataset, kinds: tuple[str, ...] = _LATE) -> bool:
    """Returns whether a transformation of these kinds follows a shuffle, so that passes begin while it is read."""
    inputs = dataset_traits.inputs(dataset)
    late = type(dataset).__name__ in kinds and any(map(_shuffles, inputs))
    return late or any(begins_passes_late(one, kinds) for one in inputs)


def _shuffles(dataset: tf.data.Dataset) -> bool:
    return any(dataset_traits.shuffle_seeds(one) for one in dataset_traits.transformations(dataset))


def copy(dataset: tf.data.Dataset, *, ordered: bool = False) -> tf.data.Dataset:
    """Returns a copy of `dataset` whose shuffles begin with their first pass; reading it does not change `dataset`.

    Args:
        ordered: whether to leave out shuffles and caches, to find out sizes.
    """
    graph = dataset_traits.graph_of(dataset)
    for node in list(graph.node):
        if ordered and node.op in ("ShuffleDatasetV3", "CacheDataset", "CacheDatasetV2"):
            del node.input[1:]
            node.attr.clear()
            node.op, node.attr["T"].type = "Identity", tf.variant.as_datatype_enum
        elif node.op in _SEEDS_INPUT:
            node.input[_SEEDS_INPUT[node.op]] = graph.node.add(op="DummySeedGenerator", name=f"{node.name}/seed").name
    copied = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(copied, dataset.element_spec)


# Operations that share the seeds of their passes with all copies -> the input that holds these seeds.
_SEEDS_INPUT = {"ShuffleDatasetV3": 4, "RandomDatasetV2": 2}
