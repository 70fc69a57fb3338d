"""`Feed`: the input of a run, as one worker sees it. `Sizes`: the numbers of examples, replicas and steps."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

# Column -> values [examples, ...].
Batch = dict[str, tf.Tensor]
# prepare(batch, seeds, *, training) -> batch
Prepare = Callable[..., Batch]
# () -> the evaluation dataset of one worker, of infinite cardinality, and its steps.
Evaluation = Callable[[], tuple[tf.data.Dataset, int]]


class Distributor(Protocol):
    """The members of `tfdist.cluster.cluster.Cluster` that a pipeline uses."""

    strategy: Any  # TensorFlow's strategy.
    num_workers: int

    def distribute(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Returns an iterator over this worker's elements, one per local replica and step."""

    def distribute_global(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Returns an iterator over global batches, which TensorFlow divides among all replicas."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of examples, replicas and steps. For a config, `inputs.make_sizes` checks them."""

    # Examples in one step, over all replicas. In a script the last step of an epoch may have fewer.
    global_batch: int
    # Replicas of all workers.
    replicas: int
    steps_per_epoch: int
    total_steps: int
    # The first step of a new run: above 0 for a script with `initial_epoch`.
    first_step: int = 0
    # Examples in one evaluation step, over all replicas.
    evaluation_batch: int = 0
    # Examples of each split; None: unknown, or no evaluation.
    training_examples: int | None = None
    evaluation_examples: int | None = None

    @property
    def per_replica(self) -> int:
        """The maximum number of examples of one replica in a step."""
        return -(-self.global_batch // self.replicas)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """A few examples, and facts about the data. They must be equal on all workers, and unchanged on resume."""

    # Column -> values [examples, ...].
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # For example the number of examples; each fact is a number or a string.
    facts: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    # Facts of this worker alone. A difference on resume is only a warning: copied files have new times.
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The input of a run; made by `pipelines.make_feed` from a config, or from the data of a script."""

    sizes: Sizes
    # Nested tf.TensorSpec of a replica's batch; in scripts, of a global batch.
    spec: Any
    # (start, stop) -> this worker's dataset of the steps [start, stop), counted from 0, of infinite cardinality: one
    # element for each local replica and step; with the textbook pipeline, global batches.
    training: Callable[[int, int], tf.data.Dataset]
    # (start, stop) -> an iterator over those batches, with one element a step for all local replicas; None for a
    # script's stream, whose iterators `iterator_at` makes.
    open_training: Callable[[int, int], Iterator[Any] | None]
    # (iterator, step) -> the iterator to use at `step`: a new one if each epoch has its own dataset.
    iterator_at: Callable[[Iterator[Any], int], Iterator[Any]] = lambda present, step: present
    # Called after the last step of an epoch.
    end_epoch: Callable[[], None] = lambda: None
    # None: no evaluation.
    evaluation: Evaluation | None
    # Called after the last step of an evaluation.
    end_evaluation: Callable[[], None] = lambda: None
    # (count) -> examples of the splits, at fixed positions.
    examples: Callable[[int], Examples]
    # (first step, last step), counted from 1 -> (step, message) of the first non-finite value in this worker's examples
    # of these steps, or None.
    first_nonfinite: Callable[[int, int], tuple[int, str] | None]
    # (label) -> the name of the first example with this label, such as "Example 17 of the split 'train'", or "".
    find_label: Callable[[int], str]
    # Reads all examples, and raises a ValueError that names the first one that cannot be read.
    verify: Callable[[], None] = lambda: None
    # (step function) -> the same function, which sees batches with the static shapes of `spec`.
    with_known_shapes: Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]] = lambda step: step
    # For a config: the log line about the `prepare` function and the batches that it returns.
    preparation: str = ""
    # For a config: warnings about the data.
    notes: tuple[str, ...] = ()
    # For a config: (count) -> the first training examples in shuffled order, completely prepared, without augmentation.
    first_batch: Callable[[int], Batch] | None = None
    # For a config: the content of data.json; see `description.to_save`.
    saved: Mapping[str, Any] = dataclasses.field(default_factory=dict)
