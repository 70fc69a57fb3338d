"""Inspects a user's `tf.data` pipeline: is it deterministic, how many batches has it, what does it start with."""

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_fit.adapters import base


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """How a pipeline behaves in the next pass, and in the next start."""

    # True if every pass gives the same batches, so that a resume can skip finished passes.
    is_deterministic: bool
    # Why two starts, or two workers, may read different batches; None: they do not.
    resume_caveat: str | None


def dataset_traits(dataset: tf.data.Dataset) -> DatasetTraits:
    """Inspects the transformations of `dataset`, and the functions that they call."""
    kinds, ops, unseeded = set(), set(), False
    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        kinds.add(type(one).__name__)
        waiting += one._inputs()
        if hasattr(one, "_seed2"):
            unseeded |= int(one._seed) == int(one._seed2) == 0
        for function in one._functions():
            ops |= set(called_ops(function.function.graph))
    shuffles = any("Shuffle" in name for name in kinds | ops)
    python = any("PyFunc" in op or op == "GeneratorDataset" for op in ops)
    # Stateless random ops are excluded: they depend only on seeds in the data.
    random = any(op.startswith(("Random", "StatefulUniform", "StatefulStandardNormal")) for op in ops)
    resume_caveat = None
    if unseeded:
        resume_caveat = (
            "the tf.data.Dataset shuffles without a seed: call keras.utils.set_random_seed, or "
            "tfdist.connect(), before it is created"
        )
    elif python:
        resume_caveat = (
            "the tf.data.Dataset runs Python code, which must return the same in every start and on every worker"
        )
    elif random:
        resume_caveat = "the tf.data.Dataset uses stateful random ops: use tf.random.stateless_*"
    return DatasetTraits(is_deterministic=not (shuffles or python or random), resume_caveat=resume_caveat)


def without_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a pipeline without the prefetch at its end: the adapters add one that is bounded by bytes."""
    while type(dataset).__name__ == "_PrefetchDataset":
        (dataset,) = dataset._inputs()
    return dataset


def called_ops(graph: tf.Graph) -> Iterator[str]:
    """Yields the types of the ops in a function, and in the functions that it calls."""
    definition = graph.as_graph_def()
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from (node.op for node in nodes)


def count(dataset: tf.data.Dataset) -> int:
    """Counts the batches of a dataset of unknown cardinality, by one pass over it.

    Raises:
        ValueError: the dataset is empty.
    """
    batches = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, _: total + 1))
    if batches == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    return batches


def first_batch_size(dataset: tf.data.Dataset) -> int:
    """Returns the number of examples in the first batch."""
    sizes = dataset.take(1).map(lambda *parts: tf.shape(tf.nest.flatten(parts)[0])[0])
    return int(next(iter(sizes)))


def sample(dataset: tf.data.Dataset) -> dict[str, np.ndarray]:
    """Returns the seeds of all shuffles, and the columns of the first element before any shuffle, by name.

    Nothing is read through a shuffle: that would start a pass, and the training would read the order of the next one.
    """
    source, seeds, waiting = dataset, [], [dataset]
    while waiting:
        one = waiting.pop()
        inputs = one._inputs()
        if hasattr(one, "_seed2"):
            seeds.append([keras.ops.convert_to_numpy(seed) for seed in (one._seed, one._seed2)])
            source = inputs[0] if inputs else None
        if any("Shuffle" in op for function in one._functions() for op in called_ops(function.function.graph)):
            source = None
            break
        waiting += inputs
    columns = {}
    for element in [] if source is None else source.take(1):
        columns = base.named_columns(element)
    return columns | {f"the seed of shuffle {index}": np.asarray(seed) for index, seed in enumerate(seeds)}
