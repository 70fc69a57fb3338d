"""Changes to the graph of a user's `tf.data` pipeline.

Only the chain `shuffle -> map -> batch` is changed: it makes global batches of unmapped examples, and each worker maps
its rows of them. Each worker reads every other pipeline unchanged.
"""

import dataclasses
from collections.abc import Callable
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
# Transformations after a shuffle that begin its passes while they are read, or cache one: making an iterator does not
# draw the seeds of all its passes.
_LATE = ("_RepeatDataset", "_ConcatenateDataset", "CacheDataset", "_ShuffleDataset")


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

    def map_rows(self, rows: Any) -> Any:
        """Maps the examples of a replica, nested tensors [rows, ...], one by one."""

        def map_row(flat: list[tf.Tensor]) -> list[tf.Tensor]:
            for function in self.maps:
                flat = tf.nest.flatten(function(*flat))
            return flat

        mapped = tf.map_fn(map_row, tf.nest.flatten(rows), fn_output_signature=tf.nest.flatten(self.mapped_spec))
        return tf.nest.pack_sequence_as(self.mapped_spec, mapped)


def split_before_maps(dataset: tf.data.Dataset) -> Split | None:
    """Returns the parts of `dataset`, or None if its maps cannot be moved after its batches."""
    one, batch, maps = dataset, None, []
    # Transformations to apply to the dataset before the maps, the last one first; and those for which no map was found
    # yet.
    above: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []
    waiting: list[Callable[[tf.data.Dataset], tf.data.Dataset]] = []
    while True:
        kind = type(one).__name__
        if kind in _FREE:
            waiting.append(lambda below, one=one, apply=_FREE[kind]: apply(one, below))
        elif kind in _BATCHES and batch is None:
            batch = one
            waiting.append(lambda below, one=one: below.batch(one._batch_size, drop_remainder=one._drop_remainder))
        elif kind in _MAPS and batch is not None and _is_pure(_mapped(one).graph):
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
        maps=tuple(map(_mapped, reversed(maps))),
        mapped_spec=maps[0].element_spec,
        batch_size=int(tf.get_static_value(batch._batch_size)),
    )


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
    while type(dataset).__name__ in _FREE:
        (dataset,) = dataset_traits.inputs(dataset)
    size = getattr(dataset, "_batch_size", None) if type(dataset).__name__ in _BATCHES else None
    return None if size is None else int(tf.get_static_value(size))


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
    """Returns a copy of `dataset` whose shuffles begin with their first pass; reading it takes no pass of `dataset`.

    Args:
        ordered: whether to leave out shuffles and caches, to find out sizes.
    """
    variant = tf.data.experimental.to_variant(dataset)
    graph = tf.compat.v1.GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1).numpy()
    )
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
