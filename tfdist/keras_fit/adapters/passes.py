"""The batches of a `tf.data` pipeline, pass by pass as Keras reads them."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfdist.data import read_ahead
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import pipelines


@dataclasses.dataclass(kw_only=True, eq=False)
class Passes:
    """Reads a pipeline of batches with one iterator, which begins a new pass where Keras makes a new iterator.

    Without a given number of steps, Keras makes an iterator for each epoch, and at the epoch's end another one that it
    does not use, unless it finds the end of the data by reading. With a given number of steps, the iterator continues
    in the next epoch.
    """

    # Yields global batches.
    dataset: tf.data.Dataset
    # The number of batches in a pass; None: not known, or endless.
    length: int | None
    # The number of steps in an epoch.
    steps: int
    # Whether the number of steps was given.
    continues: bool
    # Whether the dataset can be read again from its beginning.
    restarts: bool
    # Whether reading it changes what is read later.
    has_state: bool

    def __post_init__(self) -> None:
        may_end = self.length is None and self.dataset.cardinality() != tf.data.INFINITE_CARDINALITY
        if self.continues and self.restarts and (may_end or (self.length and self.length % self.steps)):
            self.dataset, self.length = self.dataset.repeat(), None
        self._repeats_shuffle = self.continues and pipelines.begins_passes_late(self.dataset, ("_RepeatDataset",))
        self._walks = self.has_state or (pipelines.begins_passes_late(self.dataset) and not self._repeats_shuffle)
        with tf.device("CPU:0"):  # One iterator for all epochs; empty, so no pass begins yet.
            self._iterator: Any = iter(read_ahead.without_autotuning(self.dataset.take(0)))
        # Whether a pass has begun; how many of its batches belong to epochs that have begun; how many must still be
        # skipped.
        self._is_open, self._seen, self._behind = False, 0, 0

    def reset(self) -> None:
        """Called before training, and before each evaluation."""
        self._is_open = False
        if self._repeats_shuffle:
            messages.log_once(
                "A tf.data.Dataset that repeats a shuffle begins with its first order in each call of fit, and in each "
                "evaluation; otherwise workers that read ahead would be in different passes. Keras continues with new "
                "orders."
            )
            self.dataset = pipelines.copy(self.dataset)

    def batches(self, first: int) -> tf.data.Dataset:
        """Returns the batches of an epoch from step `first` on; the same dataset serves all epochs."""
        next_batch = tf.autograph.experimental.do_not_convert(lambda number: self._iterator.get_next())
        return tf.data.Dataset.range(self.steps - first).map(next_batch)

    def begin(self) -> None:
        """Begins an epoch."""
        if not (self.continues and self._is_open):
            self._open()
        self._seen += self.steps

    def skip(self, steps: int) -> None:
        """Skips the first steps of the epoch. Reads them now only if later batches depend on it."""
        self._behind += steps
        if self._walks:
            self.catch_up()

    def catch_up(self) -> None:
        """Called before the batches of the epoch are read: reads those that are skipped."""
        for _ in range(self._behind):
            next(self._iterator)
        self._behind = 0

    def end(self) -> None:
        """Called after the last step of an epoch."""
        if self.length is not None and (not self.continues or self._seen >= self.length):
            self._open()

    def _open(self) -> None:
        variant = tf.data.experimental.to_variant(read_ahead.without_autotuning(self.dataset))
        (resource,) = tf.nest.flatten(self._iterator, expand_composites=True)
        tf.raw_ops.MakeIterator(dataset=variant, iterator=resource)
        self._is_open, self._seen, self._behind = True, 0, 0
