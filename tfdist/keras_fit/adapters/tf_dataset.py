"""The reader of `tf.data` pipelines, and of what Keras makes one of: generators, loaders of grain and torch."""

import functools
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data import dataset_traits, read_ahead
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, pipelines
from tfdist.keras_fit.adapters.base import DataOptions
from tfdist.keras_fit.adapters.stream import Reader, Stream

# Repeated shuffles that were read.
_read: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()


class DatasetReader(Reader):
    """Reads a pipeline of batches by an iterator where Keras makes one: each takes a pass of the shuffles.

    Without a given number of steps each epoch has an iterator, and at its end Keras makes another one, which it does
    not use; not if it finds the end by reading. With a number of steps, an iterator goes on in the next epoch.

    Args:
        dataset: of global batches.
        length: the batches of a pass; None: not known, or endless.
        steps: of an epoch.
        continues: whether the number of steps was given.
        restarts: whether it can be read again where it ends.
        has_state: whether reading it changes what is read later.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        length: int | None,
        steps: int,
        *,
        continues: bool,
        restarts: bool,
        has_state: bool,
    ):
        self._given, self._steps, self._continues = dataset, steps, continues
        may_end = length is None and dataset.cardinality() != tf.data.INFINITE_CARDINALITY
        if continues and restarts and (may_end or (length and length % steps)):
            dataset, length = dataset.repeat(), None
        self._dataset, self._length = dataset, length
        self._repeats_shuffle = continues and pipelines.begins_passes_late(dataset, ("_RepeatDataset",))
        self._walks = has_state or (pipelines.begins_passes_late(dataset) and not self._repeats_shuffle)
        # The iterator that goes on; whether it is made anew before it is read; the batches that it has given, and those
        # that it must still skip.
        self._iterator: Any = None
        self._is_open, self._seen, self._behind = False, 0, 0

    def reset(self) -> None:
        self._is_open = False
        if self._repeats_shuffle:
            shuffles = [one for one in dataset_traits.transformations(self._given) if dataset_traits.shuffle_seeds(one)]
            if any(one in _read for one in shuffles):
                messages.log_once(
                    "A tf.data.Dataset that repeats a shuffle begins with its first order in each later call of fit, "
                    "and in each later evaluation: workers that read ahead would be in different passes. Keras goes on "
                    "with other orders."
                )
                self._dataset = pipelines.copy(self._dataset)
            _read.update(shuffles)

    def begin(self, epoch: int) -> None:
        if self._continues and not self._is_open:
            self._open()

    def skip_to(self, first: int) -> None:
        if self._continues:
            self._skip(self._behind + first)
            self._seen += self._steps

    def batches(self, first: int) -> tf.data.Dataset:
        if not self._continues:
            return self._dataset.take(self._steps).skip(first)
        next_batch = tf.autograph.experimental.do_not_convert(lambda number: self._iterator.get_next())
        return tf.data.Dataset.range(self._steps - first).map(next_batch)

    def pass_over(self, steps: int) -> None:
        if self._continues:
            self._seen += steps
            self._behind += steps
            if self._walks:
                self._skip(self._behind)
            return
        iterator = self._new_iterator()
        for _ in range(steps if self._walks else 0):
            next(iterator)

    def end(self) -> None:
        if self._length is None:
            return
        if not self._continues:
            self._new_iterator()
        elif self._seen >= self._length:
            self._open()

    def _new_iterator(self) -> Any:
        with tf.device("CPU:0"):
            return iter(read_ahead.without_autotuning(self._dataset))

    def _open(self) -> None:
        """Begins a pass of the iterator that goes on, which is one object: the batches of all epochs refer to it."""
        if self._iterator is None:
            self._iterator = self._new_iterator()
        else:
            variant = tf.data.experimental.to_variant(read_ahead.without_autotuning(self._dataset))
            (resource,) = tf.nest.flatten(self._iterator, expand_composites=True)
            tf.raw_ops.MakeIterator(dataset=variant, iterator=resource)
        self._is_open, self._seen, self._behind = True, 0, 0

    def _skip(self, batches: int) -> None:
        for _ in range(batches):
            next(self._iterator)
        self._behind = 0


def of_dataset(
    dataset: tf.data.Dataset,
    options: DataOptions,
    *,
    length: int | None = None,
    made_by_keras: bool = False,
    is_generator: bool = False,
) -> Stream:
    """Returns the adapter for a `tf.data.Dataset`; see `make_adapter.make_data_adapter`.

    Args:
        length: the batches of a pass, if the dataset does not know them.
        made_by_keras: whether Keras has made it of other data, which a look would consume.
        is_generator: whether that is a generator, which does not start again.
    """
    dataset = dataset_traits.in_order(pipelines.without_prefetch(dataset))
    traits, parts = dataset_traits.find(dataset), pipelines.split_before_maps(dataset)
    unpack = functools.partial(base.unpack, options=options)
    spec = base.spec_of(dataset, unpack)
    if not any(base.have_rows(spec)):
        raise ValueError("The tf.data.Dataset has single examples: batch it.")
    length = length or _length(dataset, options)
    steps = options.steps or _count(dataset) if length is None else base.steps_of_epoch(options, length)
    if length is not None and length % steps:
        messages.log_once(
            f"{steps} steps per epoch do not divide the {length} batches of the data: a pass goes on in the next "
            "epoch, where Keras ends an epoch with the pass. Choose a divisor, or call repeat() on a tf.data.Dataset."
        )
    shape = tf.nest.flatten(spec)[0].shape
    static = shape[0] if shape.rank else None
    known = static or (parts.batch_size if parts else pipelines.last_batch_size(dataset))
    sizes = () if known else _first_batch_sizes(dataset)
    return Stream(
        reader=DatasetReader(
            parts.batches if parts else dataset,
            length,
            steps,
            continues=options.steps is not None,
            restarts=not is_generator,
            has_state=traits.has_state,
        ),
        steps=steps,
        batch_size=known or next(filter(None, sizes)),
        rows=sizes,
        element_spec=spec,
        smallest_batch=static or 1,
        unpack=unpack,
        map_rows=parts.map_rows if parts else lambda rows: rows,
        sample_columns=None if made_by_keras else functools.partial(_sample, dataset),
        made_by_code=traits.reads_state,
        reads_ahead=traits.has_state and options.steps is not None and not is_generator,
        resume_caveat=traits.resume_caveat,
        order_unknown=traits.order_unknown,
        work_of_all=None if parts or made_by_keras else _work_of_all(dataset),
    )


def _length(dataset: tf.data.Dataset, options: DataOptions) -> int | None:
    """Returns the number of batches; None: it is not known, or there is no end."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY and options.steps is None:
        raise ValueError("The tf.data.Dataset never ends: pass steps_per_epoch (or validation_steps, or steps).")
    if cardinality == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    return cardinality if cardinality > 0 else None


def _count(dataset: tf.data.Dataset) -> int:
    """Counts the batches of a dataset of unknown cardinality, by a pass over a copy; raises ValueError if empty."""
    batches = int(pipelines.copy(dataset, ordered=True).reduce(tf.constant(0, tf.int64), lambda total, _: total + 1))
    if batches == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    return batches


def _first_batch_sizes(dataset: tf.data.Dataset) -> tuple[int, ...]:
    """Returns the numbers of rows of the tensors of the first batch; 0: it has no dimension."""
    first = pipelines.copy(dataset, ordered=True).take(1)
    sizes = first.map(lambda *parts: [tf.shape(one)[0] if one.shape.rank != 0 else 0 for one in tf.nest.flatten(parts)])
    return tuple(int(size) for size in next(iter(sizes)))


def _sample(dataset: tf.data.Dataset) -> dict[str, np.ndarray]:
    """Returns the seeds of all shuffles, and the columns of the first element before any shuffle, by name."""
    source, seeds = dataset, []
    for one in dataset_traits.transformations(dataset):
        if pair := dataset_traits.shuffle_seeds(one):
            seeds.append([keras.ops.convert_to_numpy(seed) for seed in pair])
            source = next(iter(dataset_traits.inputs(one)), None)
        if any("Shuffle" in op for op in dataset_traits.ops_of_functions(one)):
            source = None
            break
    columns = {}
    for element in [] if source is None else source.take(1):
        columns = base.arrays_of(element)
    return columns | {f"the seed of shuffle {index}": np.asarray(seed) for index, seed in enumerate(seeds)}


def _work_of_all(dataset: tf.data.Dataset) -> str | None:
    kinds = {type(one).__name__ for one in dataset_traits.transformations(dataset)}
    works = sorted(kind.strip("_") for kind in kinds if "Map" in kind or "Interleave" in kind)
    if not works:
        return None
    return (
        f"Every worker runs all of the tf.data.Dataset ({', '.join(works)}), and keeps its rows of each batch. Maps of "
        "single examples that come after the shuffle, directly before batch(), would be divided among the workers."
    )
