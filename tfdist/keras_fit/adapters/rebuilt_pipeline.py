"""Copies of a user's `tf.data` pipeline without its shuffles, or with new ones.

A shuffle with a seed has another order in each pass. To read from it starts a pass, and the training would get the
order of the next one. Without the shuffles the pipeline has the same batch sizes and the same length, and can be looked
at before training. New shuffles have the same seeds, and their first pass is the first one again.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.util import structure

from tfdist.keras_fit.adapters import shard_before_map

# (a transformed dataset, another input) -> that input, transformed likewise.
Rebuild = Callable[[Any, tf.data.Dataset], tf.data.Dataset]


def without_shuffles(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` without its shuffles; as it is, if a transformation of another kind follows one of them."""
    try:
        return _rebuilt(dataset, _KINDS | {"_ShuffleDataset": lambda one, below: below})
    except (AttributeError, KeyError):
        return dataset


def with_new_shuffles(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns a copy of `dataset` with new shuffles.

    None if another shuffle, or a transformation of another kind, follows one of them.
    """
    try:
        return _rebuilt(dataset, _KINDS | {"_ShuffleDataset": _shuffled})
    except (AttributeError, KeyError):
        return None


def _rebuilt(dataset: tf.data.Dataset, kinds: dict[str, Rebuild]) -> tf.data.Dataset:
    if not _has_shuffle(dataset):
        return dataset
    kind, inputs = type(dataset).__name__, [_rebuilt(one, kinds) for one in dataset._inputs()]
    if kind == "_ZipDataset":
        return tf.data.Dataset.zip(tf.nest.pack_sequence_as(dataset._datasets, inputs))
    return kinds[kind](dataset, inputs[0])


def _has_shuffle(dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__ == "_ShuffleDataset" or any(_has_shuffle(one) for one in dataset._inputs())


def _calling(function: Any, spec: Any) -> Callable[..., Any]:
    """Returns a function of an element's parts that calls a traced function of its tensors."""

    @tf.autograph.experimental.do_not_convert
    def call(*parts: Any) -> Any:
        results = function(*tf.nest.flatten(parts, expand_composites=True))
        return structure.from_tensor_list(spec, tf.nest.flatten(results))

    return call


def _mapped(one: Any, below: tf.data.Dataset) -> tf.data.Dataset:
    parallel = type(one).__name__ == "_ParallelMapDataset"
    options = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True} if parallel else {}
    return below.map(_calling(one._map_func.function, one.element_spec), **options)


def _filtered(one: Any, below: tf.data.Dataset) -> tf.data.Dataset:
    return below.filter(_calling(one._predicate.function, tf.TensorSpec([], tf.bool)))


def _shuffled(one: Any, below: tf.data.Dataset) -> tf.data.Dataset:
    if _has_shuffle(below):  # A pass that is skipped would take no seeds from it.
        raise KeyError(one)
    return shard_before_map.ELEMENTWISE_AGNOSTIC["_ShuffleDataset"](one, below)


_KINDS: dict[str, Rebuild] = {
    **shard_before_map.ELEMENTWISE_AGNOSTIC,
    **dict.fromkeys(shard_before_map.BATCHES, shard_before_map.batched_as),
    **dict.fromkeys(shard_before_map.MAPS, _mapped),
    "_FilterDataset": _filtered,
    "CacheDataset": lambda one, below: below,
}
