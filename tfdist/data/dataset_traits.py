"""Finds what a resumed run may not repeat in a `tf.data` pipeline of the user's."""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from tfdist.data import stateful_ops


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """Whether a pipeline repeats its batches in the next pass, and in the next start."""

    # True if every pass gives the same batches, so that a resume can skip finished passes.
    is_deterministic: bool
    # True if it shuffles, or reads files in random order.
    shuffles: bool
    # True if it runs Python code, reads variables or draws from a state: passes differ if those are changed between.
    reads_state: bool
    # Why two starts, or two workers, may read different batches; None: they do not.
    resume_caveat: str | None


def find(dataset: tf.data.Dataset) -> DatasetTraits:
    """Inspects the transformations of `dataset`, and the functions that they call."""
    kinds, ops, unseeded = set(), set(), False
    for one in transformations(dataset):
        kinds.add(type(one).__name__)
        unseeded |= [int(seed) for seed in shuffle_seeds(one)] == [0, 0]
        ops |= ops_of_functions(one)
    shuffles = any("Shuffle" in name for name in kinds | ops)
    python = any("PyFunc" in op or op == "GeneratorDataset" for op in ops)
    # Stateless random ops are excluded: they depend only on seeds in the data.
    random = bool(ops & stateful_ops.RANDOM)
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
    return DatasetTraits(
        is_deterministic=deterministic,
        shuffles=shuffles,
        reads_state=python or random or any("ReadVariable" in op for op in ops),
        resume_caveat=resume_caveat,
    )


def inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that `dataset` transforms."""
    return [*dataset._inputs()]


def transformations(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields `dataset` and all that it transforms, the last transformation first."""
    yield dataset
    for one in inputs(dataset):
        yield from transformations(one)


def shuffle_seeds(dataset: tf.data.Dataset) -> list[tf.Tensor]:
    """Returns the two seeds of a shuffle; [] for another transformation."""
    return [dataset._seed, dataset._seed2] if hasattr(dataset, "_seed2") else []


def ops_of_functions(dataset: tf.data.Dataset) -> set[str]:
    """Returns the types of the ops in the functions of one transformation."""
    return {op for function in dataset._functions() for op in stateful_ops.called_ops(function.function.graph)}
