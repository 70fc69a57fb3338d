"""What can be known of a user's `tf.data` pipeline without running it, and what only by running it."""

import dataclasses
import itertools
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """How a pipeline behaves from one pass to the next, and from one start to the next."""

    # Whether every pass gives the same batches, so that passes which are done can be left out at a resume.
    repeats: bool
    # Why two starts, or two workers, may see different batches; None: they do not.
    weakness: str | None


def dataset_traits(dataset: tf.data.Dataset) -> DatasetTraits:
    """Looks through the steps of `dataset`, and through the functions that they call."""
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
    # Stateless ones are functions of seeds that the data carries.
    random = any(op.startswith(("Random", "StatefulUniform", "StatefulStandardNormal")) for op in ops)
    weakness = None
    if unseeded:
        weakness = (
            "the tf.data.Dataset shuffles without a seed: call keras.utils.set_random_seed before it is made, or "
            "tfdist.connect(), which does"
        )
    elif python:
        weakness = "the tf.data.Dataset runs Python code, which must give the same in every start and on every worker"
    elif random:
        weakness = "the tf.data.Dataset draws random numbers by state and not by seed: use tf.random.stateless_*"
    return DatasetTraits(repeats=not (shuffles or python or random), weakness=weakness)


def called_ops(graph: tf.Graph) -> Iterator[str]:
    """Yields the ops of a function, and of those that it calls."""
    definition = graph.as_graph_def()
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from (node.op for node in nodes)


def count(dataset: tf.data.Dataset) -> int:
    """Counts the batches of a dataset that does not know how many it has, by one pass over it.

    Raises:
        ValueError: there is none.
    """
    batches = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, _: total + 1))
    if batches == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    return batches


def first_batch_size(dataset: tf.data.Dataset) -> int:
    """The number of examples in the first batch."""
    sizes = dataset.take(1).map(lambda *parts: tf.shape(tf.nest.flatten(parts)[0])[0])
    return int(next(iter(sizes)))


def sample(dataset: tf.data.Dataset) -> list[np.ndarray]:
    """Reads the first element that comes before any shuffle, and the seeds of the shuffles.

    Nothing is read through a shuffle: a second pass has another order, which the training would then have.
    """
    source, seeds, waiting = dataset, [], [dataset]
    while waiting:
        one = waiting.pop()
        inputs = one._inputs()
        if hasattr(one, "_seed2"):
            seeds += [one._seed, one._seed2]
            source = inputs[0] if inputs else None
        if any("Shuffle" in op for function in one._functions() for op in called_ops(function.function.graph)):
            source = None
            break
        waiting += inputs
    first = [] if source is None else itertools.chain.from_iterable(map(tf.nest.flatten, source.take(1)))
    return [keras.ops.convert_to_numpy(part) for part in (*seeds, *first)]
