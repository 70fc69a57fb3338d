"""A user's `tf.data` pipeline without its shuffles, to look at it before training.

A shuffle with a seed has another order in each pass. To read from it starts a pass, and the training would get the
order of the next one. Without the shuffles the pipeline has the same batch sizes and the same length.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.util import structure

from tfdist.keras_fit.adapters import shard_before_map


def without_shuffles(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` without its shuffles; as it is, if a transformation of another kind follows one of them."""
    try:
        return _rebuilt(dataset)
    except (AttributeError, KeyError):
        return dataset


def _rebuilt(dataset: tf.data.Dataset) -> tf.data.Dataset:
    if not _has_shuffle(dataset):
        return dataset
    kind, inputs = type(dataset).__name__, [_rebuilt(one) for one in dataset._inputs()]
    if kind == "_ShuffleDataset":
        return inputs[0]
    if kind == "_ZipDataset":
        return tf.data.Dataset.zip(tf.nest.pack_sequence_as(dataset._datasets, inputs))
    return _KINDS[kind](dataset, inputs[0])


def _has_shuffle(dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__ == "_ShuffleDataset" or any(_has_shuffle(one) for one in dataset._inputs())


def _calling(function: Any, spec: Any) -> Callable[..., Any]:
    """Returns a function of an element's parts that calls a traced function of its tensors."""

    @tf.autograph.experimental.do_not_convert
    def call(*parts: Any) -> Any:
        results = function(*tf.nest.flatten(parts, expand_composites=True))
        return structure.from_tensor_list(spec, tf.nest.flatten(results))

    return call


_MAP, _FILTER = (
    lambda one, below: below.map(_calling(one._map_func.function, one.element_spec)),
    lambda one, below: below.filter(_calling(one._predicate.function, tf.TensorSpec([], tf.bool))),
)
_KINDS: dict[str, Callable[[Any, tf.data.Dataset], tf.data.Dataset]] = {
    **shard_before_map.ELEMENTWISE_AGNOSTIC,
    **dict.fromkeys(shard_before_map.BATCHES, shard_before_map.batched_as),
    **dict.fromkeys(shard_before_map.MAPS, _MAP),
    "_FilterDataset": _FILTER,
    "CacheDataset": lambda one, below: below,
}
