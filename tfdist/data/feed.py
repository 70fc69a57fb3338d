"""`Feed`: the input of a run, as one worker sees it. `Sizes`: its numbers of examples, replicas and steps."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

# Column -> values [examples, ...].
Batch = dict[str, tf.Tensor]
# prepare(batch, seeds, *, training) -> batch
Prepare = Callable[..., Batch]
# () -> the evaluation dataset of one worker, repeated endlessly, and its steps.
Evaluation = Callable[[], tuple[tf.data.Dataset, int]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of examples, replicas and steps; those of a config are checked by `inputs.make_sizes`."""

    # Examples in one step, over all replicas. In a script the last step of a pass may have fewer.
    global_batch: int
    # Replicas of all workers.
    replicas: int
    steps_per_epoch: int
    total_steps: int
    # The first step of a new run: above 0 for a script with `initial_epoch`.
    first_step: int = 0
    # Examples in one evaluation step, over all replicas.
    evaluation_batch: int = 0
    # Examples of the splits; None: not known, or no evaluation.
    training_examples: int | None = None
    evaluation_examples: int | None = None

    @property
    def per_replica(self) -> int:
        """Examples of one replica in a step, at most."""
        return -(-self.global_batch // self.replicas)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """A few examples, and facts about the data: equal on all workers, and when a run resumes."""

    # Column -> values [examples, ...].
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Such as the number of examples: a number, or a text.
    facts: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    # Facts of this worker alone. A difference when the run resumes is reported: a copy of files has other times.
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the log and the workdir say about the data."""

    # The chosen preparation and what it returns; () if there is none.
    preparation: tuple[str, ...] = ()
    example_name: str = "examples"
    notes: tuple[str, ...] = ()
    # (count) -> the first training examples, completely prepared, without augmentation; None for a script.
    first_batch: Callable[[int], Batch] | None = None
    # The content of data.json; see `description.to_save`. Empty: no such file is written.
    saved: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    usage: str = ""  # See `description.usage`.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The input of a run; made by `pipelines` or `textbook` from a config, or from the data of a script."""

    sizes: Sizes
    # Nested tf.TensorSpec: of the batch of a replica; for scripts of a global batch.
    spec: Any
    # (start, stop) -> this worker's batches of the steps [start, stop), counted from 0, repeated endlessly: one for
    # each local replica and step; with the textbook pipeline, global batches.
    training: Callable[[int, int], tf.data.Dataset]
    # (start, stop) -> an iterator over them, with an element for all local replicas in each step.
    open_training: Callable[[int, int], Iterator[Any]]
    # (the present iterator, step) -> the iterator for `step`: another one where an epoch is read by itself.
    iterator_at: Callable[[Iterator[Any], int], Iterator[Any]] = lambda present, step: present
    # Called after the last step of an epoch.
    end_epoch: Callable[[], None] = lambda: None
    # None: no evaluation.
    evaluation: Evaluation | None
    # Called after the last step of an evaluation.
    end_evaluation: Callable[[], None] = lambda: None
    # (count) -> examples of the splits, at positions that depend on the sizes only.
    examples: Callable[[int], Examples]
    # (first_number, last_number), counted from 1 -> the first of these steps whose examples, on this worker, have a
    # value that is not finite, and a sentence about it; None: there is none.
    first_nonfinite: Callable[[int, int], tuple[int, str] | None]
    # (label) -> the first example with this label, such as "Example 17 of the split 'train'"; "": none was found.
    find_label: Callable[[int], str]
    # Reads all examples, and raises a ValueError that names the first one that cannot be read.
    verify: Callable[[], None] = lambda: None
    # step(context, batch) -> the same step, whose batches have the shapes of `spec`.
    with_known_shapes: Callable[[Callable[..., tf.Tensor]], Callable[..., tf.Tensor]] = lambda step: step
    about: About = About()
