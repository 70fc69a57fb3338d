"""The adapter of `keras.utils.PyDataset`: a pipeline of the numbers of its batches, which are read by them."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, tf_dataset
from tfdist.keras_fit.adapters.base import DataOptions
from tfdist.keras_fit.adapters.stream import Stream


def of_py_dataset(data: keras.utils.PyDataset, options: DataOptions) -> Stream:
    """Returns the adapter for a `keras.utils.PyDataset`; see `make_adapter.make_data_adapter`."""
    name = type(data).__name__
    try:
        length = data.num_batches
    except NotImplementedError:
        length = 0
    if not length:
        raise ValueError(f"{name}.__len__ must be the number of its batches, at least 1.")
    given = [data[index] for index in range(min(2, length))]
    samples = [as_tuple(one) for one in given]
    spec = data_adapter_utils.get_tensor_spec(samples)
    if options.as_given and isinstance(given[0], np.ndarray):  # A loop of a script gets x, and not (x,).
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
        tf_dataset.of_dataset(batches, options, sizes=sizes, made_by_keras=True, is_indexed=True),
        sample_columns=lambda: base.arrays_of(samples[0]),
        resume_caveat=f"{name}.{hooks[-1]} must do the same in every start and on every worker" if hooks else None,
        on_epoch_begin=data.on_epoch_begin,
        on_epoch_end=data.on_epoch_end,
    )


def as_tuple(batch: Any) -> tuple | dict:
    """Returns a batch as Keras passes that of a PyDataset on: a dict, or a tuple of its parts."""
    if not isinstance(batch, tuple | list | dict | np.ndarray):
        raise ValueError(
            f"A batch must be x, (x,), (x, y) or (x, y, sample_weight) of arrays. Received: {type(batch).__name__}"
        )
    if isinstance(batch, dict):  # A step of the model's own gets it as it is.
        return batch
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    while batch[1:] and batch[-1] is None:  # Such as (x, y, None).
        batch = batch[:-1]
    return batch
