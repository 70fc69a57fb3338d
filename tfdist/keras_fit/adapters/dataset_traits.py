"""Finds parts of a user's `tf.data` pipeline that a resumed run may not repeat exactly."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.data import guard

_UNORDERED = (
    "An operation of the tf.data.Dataset has deterministic=False, so its order may differ between runs and workers. "
    "Remove this argument, or, for tfds.load, pass read_config=tfds.ReadConfig(shuffle_seed=0)."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """Whether a pipeline repeats its batches in the next pass, and in the next start."""

    # True if it runs Python code or draws from a state: passes may differ if some are not read.
    has_state: bool
    # True if it has a state, or reads variables: passes differ if these change in between.
    reads_state: bool
    # Why two starts, or two workers, may read different batches; None: they do not.
    resume_caveat: str | None
    # A message about an operation that returns its elements in any order; None: there is none.
    order_unknown: str | None


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset`, in a fixed order even if its options allow any."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def find(dataset: tf.data.Dataset) -> DatasetTraits:
    """Inspects the transformations of `dataset`, and the functions that they call."""
    ops, unseeded, unordered = set(), False, False
    for one in transformations(dataset):
        unordered |= _is_unordered(one)
        unseeded |= shuffle_seeds(one) == [0, 0]
        ops |= ops_of_functions(one)
    python = any("PyFunc" in op or op == "GeneratorDataset" for op in ops)
    # Stateless random ops are excluded: they depend only on seeds in the data.
    random = bool(ops & guard.RANDOM)
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
    return DatasetTraits(
        has_state=python or random,
        reads_state=python or random or any("ReadVariable" in op for op in ops),
        resume_caveat=resume_caveat,
        order_unknown=_UNORDERED if unordered else None,
    )


def inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that `dataset` transforms."""
    return [*dataset._inputs()]


def transformations(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields `dataset` and all that it transforms, the last transformation first."""
    yield dataset
    for one in inputs(dataset):
        yield from transformations(one)


def shuffle_seeds(dataset: tf.data.Dataset) -> list[int]:
    """Returns the two seeds of a shuffle; [] for another transformation."""
    return [int(dataset._seed), int(dataset._seed2)] if hasattr(dataset, "_seed2") else []


def graph_of(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """Returns the graph of `dataset` and of all that it transforms."""
    variant = tf.data.experimental.to_variant(dataset)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def functions(dataset: tf.data.Dataset) -> list[Any]:
    """Returns the functions that one transformation calls, traced; each has a `graph`."""
    return [one.function for one in dataset._functions()]


def ops_of_functions(dataset: tf.data.Dataset) -> set[str]:
    """Returns the types of the ops in the functions of one transformation."""
    return {op for function in functions(dataset) for op in ops_of(function.graph)}


def ops_of(graph: tf.Graph) -> set[str]:
    """Returns the types of the ops in a graph, and in the functions that it calls."""
    return {node.op for node in guard.nodes(graph.as_graph_def())}


def _is_unordered(dataset: tf.data.Dataset) -> bool:
    """Returns whether one transformation, or one in its functions, was made with `deterministic=False`."""
    graphs = [function.graph.as_graph_def() for function in functions(dataset)]
    # For an interleave only the graph has the argument. With one element, such as one file, the order is fixed.
    if type(dataset).__name__ == "_ParallelInterleaveDataset" and inputs(dataset)[0].cardinality() != 1:
        graphs.append(graph_of(dataset))
    own = hasattr(dataset, "_deterministic") and dataset._deterministic == "false"
    return own or any(node.attr["deterministic"].s == b"false" for one in graphs for node in guard.nodes(one))
