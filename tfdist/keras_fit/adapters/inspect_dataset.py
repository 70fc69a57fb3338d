"""Inspects a user's `tf.data` pipeline: its number of batches, its batch size, its first columns."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.data import dataset_traits
from tfdist.keras_fit.adapters import base


def without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a pipeline without the prefetch at its end: the adapters add one that is bounded by bytes."""
    while type(dataset).__name__ == "_PrefetchDataset":
        (dataset,) = dataset_traits.inputs(dataset)
    return dataset


def is_batched(dataset: tf.data.Dataset, batch_size: int) -> bool:
    """Returns whether the elements of `dataset` seem to be batches; in doubt they are, as Keras takes them to be."""
    if makes_batches(dataset):
        return True
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    return all(shape.rank != 0 and (shape.rank is None or shape[0] in (None, batch_size)) for shape in shapes)


def makes_batches(dataset: tf.data.Dataset) -> bool:
    """Returns whether one of the operations of `dataset` makes batches, which no later one divides."""
    kind = type(dataset).__name__
    if "Unbatch" in kind:
        return False
    return "Batch" in kind or any(map(makes_batches, dataset_traits.inputs(dataset)))


def shuffles(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the shuffles that order each pass; none if a cache after them keeps the order of the first."""
    found, waiting = [], [dataset]
    while waiting:
        one = waiting.pop()
        if type(one).__name__ == "CacheDataset":
            return []
        if type(one).__name__ == "_ShuffleDataset":
            found.append(one)
        else:
            waiting += dataset_traits.inputs(one)
    return found


def passes_of_keras(dataset: tf.data.Dataset, *, two_per_epoch: bool, skipped: int) -> tf.data.Dataset:
    """Returns a shuffled `dataset` repeated endlessly, with the order of the epochs of `Model.fit`.

    At the end of an epoch Keras makes an iterator that it does not use, and another one for the next epoch. Each of
    them takes the seeds of one pass from the shuffle.

    Args:
        two_per_epoch: whether Keras does so; not where it finds the end of an epoch by reading.
        skipped: the passes that earlier calls have taken.
    """
    nothing = tf.data.Dataset.range(0)
    unused = tf.data.Dataset.zip((nothing, dataset)).map(
        tf.autograph.experimental.do_not_convert(lambda number, element: element)
    )
    passes = dataset.concatenate(unused).repeat() if two_per_epoch else dataset.repeat()
    if not skipped:
        return passes
    # Not by `repeat`, which makes one iterator more than it reads.
    before = tf.data.Dataset.range(skipped).flat_map(tf.autograph.experimental.do_not_convert(lambda number: unused))
    return before.concatenate(passes)


def count(dataset: tf.data.Dataset) -> int:
    """Counts the batches of a dataset of unknown cardinality, by one pass over it; raises ValueError if it is empty."""
    batches = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, _: total + 1))
    if batches == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    return batches


def first_batch_sizes(dataset: tf.data.Dataset) -> list[int]:
    """Returns the numbers of rows of the tensors of the first batch."""
    sizes = dataset.take(1).map(lambda *parts: [tf.shape(part)[0] for part in tf.nest.flatten(parts)])
    return [int(size) for size in next(iter(sizes))]


def sample(dataset: tf.data.Dataset) -> dict[str, np.ndarray]:
    """Returns the seeds of all shuffles, and the columns of the first element before any shuffle, by name.

    Nothing is read through a shuffle: that would start a pass, and the training would read the order of the next one.
    """
    source, seeds, waiting = dataset, [], [dataset]
    while waiting:
        one = waiting.pop()
        inputs = dataset_traits.inputs(one)
        if pair := dataset_traits.shuffle_seeds(one):
            seeds.append([keras.ops.convert_to_numpy(seed) for seed in pair])
            source = inputs[0] if inputs else None
        if any("Shuffle" in op for op in dataset_traits.ops_of_functions(one)):
            source = None
            break
        waiting += inputs
    columns = {}
    for element in [] if source is None else source.take(1):
        columns = base.name_columns(element)
    return columns | {f"the seed of shuffle {index}": np.asarray(seed) for index, seed in enumerate(seeds)}
