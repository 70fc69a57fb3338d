"""The reader of `keras.utils.PyDataset`: its batches are read by their numbers."""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfdist.data import order
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.adapters.base import DataOptions
from tfdist.keras_fit.adapters.stream import Reader, Stream


class PyDatasetReader(Reader):
    """Reads the batches of a `keras.utils.PyDataset`: the number of a step decides which.

    Args:
        spec: nested tf.TensorSpec of a batch.
        length: the batches of a pass.
        steps: of an epoch.
        calls: the threads that make batches.
        seed: of the order of the batches in each pass; None: they are in order.
    """

    def __init__(self, data: keras.utils.PyDataset, spec: Any, length: int, steps: int, calls: int, seed: int | None):
        self._data, self._spec, self._length, self._steps = data, spec, length, steps
        self._calls, self._seed = calls, seed
        # The numbers of the batches of the epoch.
        self._indices: list[int] = []

    def begin(self, epoch: int) -> None:
        self._indices = [self._index(epoch * self._steps + step) for step in range(self._steps)]

    def batches(self, first: int) -> tf.data.Dataset:
        load = tf.autograph.experimental.do_not_convert(self._load)
        steps = tf.data.Dataset.range(first, self._steps)
        return steps.map(load, num_parallel_calls=self._calls, deterministic=True)

    def _index(self, step: int) -> int:
        number, index = divmod(step, self._length)
        if self._seed is None:
            return index
        return int(order.permute(tf.constant([index], tf.int64), number, seed=self._seed, num_examples=self._length)[0])

    def _load(self, step: tf.Tensor) -> Any:
        specs = tf.nest.flatten(self._spec, expand_composites=True)
        flat = tf.numpy_function(self._read, [step], [one.dtype for one in specs])
        flat = flat if isinstance(flat, list | tuple) else [flat]
        shaped = [tf.ensure_shape(one, like.shape) for one, like in zip(flat, specs, strict=True)]
        return tf.nest.pack_sequence_as(self._spec, shaped, expand_composites=True)

    def _read(self, step: np.int64) -> list[np.ndarray]:
        batch = as_tuple(self._data[self._indices[step]])
        return [np.asarray(part) for part in tf.nest.flatten(batch, expand_composites=True)]


def of_py_dataset(data: keras.utils.PyDataset, options: DataOptions) -> Stream:
    """Returns the adapter for a `keras.utils.PyDataset`; see `make_adapter.make_data_adapter`."""
    name = type(data).__name__
    try:
        length = data.num_batches
    except NotImplementedError:
        length = 0
    if not length:
        raise ValueError(f"{name}.__len__ must be the number of its batches, at least 1.")
    samples = [as_tuple(data[index]) for index in range(min(2, length))]
    spec = data_adapter_utils.get_tensor_spec(samples)
    steps = base.steps_of_epoch(options, length)
    plain = keras.utils.PyDataset
    hooks = [one for one in ("on_epoch_begin", "on_epoch_end") if getattr(type(data), one) is not getattr(plain, one)]
    calls = 1 if hooks else max(1, data.workers)
    if data.use_multiprocessing and calls > 1:
        messages.log_once(
            f"{name}(use_multiprocessing=True): its {data.workers} workers are threads, which share the object. If "
            f"{name}.__getitem__ sets attributes, give it workers=1."
        )
    reader = PyDatasetReader(data, spec, length, steps, calls, options.seed if options.shuffle else None)

    unpack = functools.partial(base.unpack, options=options)
    does_the_same = "must do the same in every start and on every worker"
    return Stream(
        reader=reader,
        steps=steps,
        batch_size=keras.tree.flatten(samples[0])[0].shape[0],
        element_spec=base.spec_of(reader.batches(0), unpack),
        unpack=unpack,
        sample_columns=lambda: base.arrays_of(samples[0]),
        made_by_code=True,
        resume_caveat=f"{name}.{hooks[-1]} {does_the_same}" if hooks else None,
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
