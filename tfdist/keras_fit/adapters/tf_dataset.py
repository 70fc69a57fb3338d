"""Adapters of `tf.data` pipelines, and of data converted to one: generators, PyDatasets, loaders of grain and torch.

A PyDataset becomes a pipeline of batch numbers, and each batch is read by its number.
"""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, dataset_traits, pipelines
from tfdist.keras_fit.adapters.base import DataOptions
from tfdist.keras_fit.adapters.passes import Passes
from tfdist.keras_fit.adapters.stream import Stream


def adapt_dataset(
    dataset: tf.data.Dataset,
    options: DataOptions,
    *,
    length: int | None = None,
    sizes: tuple[int, ...] = (),
    made_by_keras: bool = False,
    is_generator: bool = False,
    is_indexed: bool = False,
) -> Stream:
    """Returns the adapter for a `tf.data.Dataset`; see `make_adapter.make_data_adapter`.

    Args:
        length: the number of batches in a pass, if the dataset does not know it.
        sizes: the numbers of rows of the tensors of the first batch, if they are known.
        made_by_keras: whether the dataset was made from other data, which a sample would consume.
        is_generator: whether these other data are a generator, which cannot start again.
        is_indexed: whether they read each batch by its number, whatever was read before.
    """
    dataset = dataset_traits.in_order(pipelines.without_prefetch(dataset))
    traits = dataset_traits.find(dataset)
    batches, map_rows = pipelines.split_before_maps(dataset)
    unpack = functools.partial(base.unpack, options=options)
    spec = base.spec_of(dataset, unpack)
    if not any(base.have_rows(spec)):
        raise ValueError("The tf.data.Dataset has single examples: batch it.")
    cardinality = int(dataset.cardinality()) if length is None else length
    if cardinality == tf.data.INFINITE_CARDINALITY and options.steps is None:
        raise ValueError("The tf.data.Dataset never ends: pass steps_per_epoch (or validation_steps, or steps).")
    length = cardinality if cardinality >= 0 else None
    steps = options.steps or _count(dataset) if length is None else base.steps_of_epoch(options, length)
    if steps == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    if length is not None and length % steps:
        messages.log_once(
            f"{steps} steps per epoch do not divide the {length} batches of the data: a pass continues in the "
            "next epoch, whereas in Keras an epoch ends with the pass. Choose a divisor, or call repeat() on a "
            "tf.data.Dataset."
        )
    shape = tf.nest.flatten(spec)[0].shape
    static = shape[0] if shape.rank else None
    known = static or pipelines.last_batch_size(dataset)
    sizes = () if known else sizes or _first_batch_sizes(dataset)
    return Stream(
        passes=Passes(
            dataset=batches,
            length=length,
            steps=steps,
            continues=options.steps is not None,
            restarts=not is_generator,
            has_state=traits.has_state and not is_indexed,
        ),
        steps=steps,
        batch_size=known or next(filter(None, sizes)),
        rows=sizes,
        element_spec=spec,
        unpack=lambda rows: unpack(map_rows(rows)),
        sample=(lambda count: {}) if made_by_keras else functools.partial(_sample, dataset),
        made_by_code=traits.reads_state,
        size_unknown=length is None and options.steps is None,
        resume_caveat=traits.resume_caveat,
        order_unknown=traits.order_unknown,
        work_of_all=None if batches is not dataset or made_by_keras else _work_of_all(dataset),
    )


def adapt_py_dataset(data: keras.utils.PyDataset, options: DataOptions) -> Stream:
    """Returns the adapter for a `keras.utils.PyDataset`; see `make_adapter.make_data_adapter`."""
    name = type(data).__name__
    try:
        length = data.num_batches
    except NotImplementedError:
        length = 0
    if not length:
        raise ValueError(f"{name}.__len__ must return the number of its batches, at least 1.")
    given = [data[index] for index in range(min(2, length))]
    samples = [as_tuple(one) for one in given]
    spec = data_adapter_utils.get_tensor_spec(samples)
    if isinstance(given[0], np.ndarray):  # A step gets x, and not (x,).
        spec = spec[0]
    specs = tf.nest.flatten(spec, expand_composites=True)
    plain = keras.utils.PyDataset
    hooks = [one for one in ("on_epoch_begin", "on_epoch_end") if getattr(type(data), one) is not getattr(plain, one)]
    calls = 1 if hooks else max(1, data.workers)
    if data.use_multiprocessing and calls > 1:
        messages.log_once(
            f"{name}(use_multiprocessing=True): its {data.workers} workers are threads, which share the object. If "
            f"{name}.__getitem__ sets attributes, give it workers=1."
        )

    def read(number: np.int64) -> list[np.ndarray]:
        batch = as_tuple(data[int(number)])
        return [np.asarray(part) for part in tf.nest.flatten(batch, expand_composites=True)]

    @tf.autograph.experimental.do_not_convert
    def load(number: tf.Tensor) -> Any:
        flat = tf.numpy_function(read, [number], [one.dtype for one in specs])
        shaped = [tf.ensure_shape(one, like.shape) for one, like in zip(tf.nest.flatten(flat), specs, strict=True)]
        return tf.nest.pack_sequence_as(spec, shaped, expand_composites=True)

    numbers = tf.data.Dataset.range(length)
    if options.shuffle:
        numbers = numbers.shuffle(length, seed=options.seed)
    batches = numbers.map(load, num_parallel_calls=calls, deterministic=True) if calls > 1 else numbers.map(load)
    sizes = tuple(one.shape[0] if len(one.shape) else 0 for one in tf.nest.flatten(samples[0]))
    return dataclasses.replace(
        adapt_dataset(batches, options, sizes=sizes, made_by_keras=True, is_indexed=True),
        sample=lambda count: base.arrays_of(samples[0]),
        resume_caveat=f"{name}.{hooks[-1]} must do the same in every start and on every worker" if hooks else None,
        on_epoch_begin=data.on_epoch_begin,
        on_epoch_end=data.on_epoch_end,
    )


def as_tuple(batch: Any) -> tuple | dict:
    """Returns a batch as Keras passes on the batch of a PyDataset: a dict, or a tuple of its parts."""
    if not isinstance(batch, tuple | list | dict | np.ndarray):
        raise ValueError(
            f"A batch must be x, (x,), (x, y) or (x, y, sample_weight) of arrays. Received: {type(batch).__name__}"
        )
    if isinstance(batch, dict):  # The model's own step gets it as it is.
        return batch
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    while batch[1:] and batch[-1] is None:  # Such as (x, y, None).
        batch = batch[:-1]
    return batch


def _count(dataset: tf.data.Dataset) -> int:
    """Counts the batches of a dataset of unknown cardinality, by a pass over a copy."""
    return int(pipelines.copy(dataset, ordered=True).reduce(tf.constant(0, tf.int64), lambda total, _: total + 1))


def _first_batch_sizes(dataset: tf.data.Dataset) -> tuple[int, ...]:
    """Returns the numbers of rows of the tensors of the first batch; 0 for a scalar."""
    first = pipelines.copy(dataset, ordered=True).take(1)
    sizes = first.map(lambda *parts: [tf.shape(one)[0] if one.shape.rank != 0 else 0 for one in tf.nest.flatten(parts)])
    return tuple(int(size) for size in next(iter(sizes)))


def _sample(dataset: tf.data.Dataset, count: int) -> dict[str, np.ndarray]:
    """Returns the seeds of the shuffles, and the columns of the first element before any shuffle, by name.

    If a transformation calls a function that shuffles, what comes before it is left out.
    """
    source, seeds = dataset, []
    for one in dataset_traits.transformations(dataset):
        if pair := dataset_traits.shuffle_seeds(one):
            seeds.append(pair)
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
