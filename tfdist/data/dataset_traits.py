"""Inspects a user's `tf.data` pipeline: whether it is deterministic, and which operations it runs."""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """Whether a pipeline repeats its batches in the next pass, and in the next start."""

    # True if every pass gives the same batches, so that a resume can skip finished passes.
    is_deterministic: bool
    # True if it shuffles, or reads files in random order.
    shuffles: bool
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
    deterministic = not (shuffles or python or random)
    return DatasetTraits(is_deterministic=deterministic, shuffles=shuffles, resume_caveat=resume_caveat)


def called_ops(graph: tf.Graph) -> Iterator[str]:
    """Yields the types of the ops in a function, and in the functions that it calls."""
    definition = graph.as_graph_def()
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from (node.op for node in nodes)
