"""Chooses the data adapter for `x`: arrays, a source, a tf.data dataset, a Keras PyDataset or a generator."""

import functools
import numbers
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, array_slicing, data_adapter_utils

from tfdist.keras_fit.adapters import base, tf_dataset
from tfdist.keras_fit.adapters.base import DataAdapter, DataOptions, RandomAccess
from tfdist.keras_fit.adapters.stream import Stream

# The default of `model.fit`.
DEFAULT_BATCH_SIZE = 32


def make_data_adapter(x: Any, y: Any, sample_weight: Any, options: DataOptions) -> DataAdapter:
    """Returns the data adapter for the data arguments of `model.fit`; see `api.fit` for `x`, `y` and `sample_weight`.

    Raises:
        ValueError: the data is not supported, its arrays have different lengths, or its length is unknown.
    """
    for name, value in (("batch_size", options.batch_size), ("steps_per_epoch", options.steps)):
        if value is not None and (not isinstance(value, numbers.Integral) or value < 1):
            raise ValueError(f"{name} must be a whole number and at least 1. Received: {value!r}")
    if options.class_weight is not None and sample_weight is not None:
        raise ValueError("Give either class_weight or sample_weight: class_weight is turned into sample weights.")
    adapt = _adapter_of_batches(x)
    if adapt is None:
        return _arrays(x, y, sample_weight, options)
    if y is not None or sample_weight is not None:
        raise ValueError(f"A {type(x).__name__} contains targets and weights: remove y and sample_weight.")
    return adapt(x, options)


def split(x: Any, y: Any, sample_weight: Any, part: float) -> tuple[tuple, tuple]:
    """Splits examples as Keras does: returns (x, y, sample_weight) of the first ones, and of the last fraction `part`.

    Raises:
        ValueError: `part` is not between 0 and 1.
    """
    if not 0 < part < 1:
        raise ValueError(f"validation_split must be between 0 and 1. Received: {part!r}")
    return array_slicing.train_validation_split((x, y, sample_weight), validation_split=part)


def _adapter_of_batches(x: Any) -> Callable[[Any, DataOptions], DataAdapter] | None:
    """Returns the function that makes the adapter of `x`, which contains targets and weights; None: `x` is arrays."""
    if isinstance(x, tf.data.Dataset):
        return tf_dataset.adapt_dataset
    if isinstance(x, keras.utils.PyDataset):
        return tf_dataset.adapt_py_dataset
    if isinstance(x, Iterator):
        return _generator
    if hasattr(x, "read") and hasattr(x, "__len__"):
        return _source
    # An object that Keras may know, such as a dataset of grain or a DataLoader of torch.
    is_other = not keras.tree.is_nested(x) and not array_data_adapter.can_convert_arrays(x)
    return _batches_of_keras if is_other else None


def _batches_of_keras(x: Any, options: DataOptions, *, is_generator: bool = False) -> Stream:
    """Lets Keras make batches of the data, and returns their adapter. Keras' ValueError names the type of the data."""
    found = data_adapters.get_data_adapter(x, batch_size=options.batch_size, steps_per_epoch=options.steps)
    return tf_dataset.adapt_dataset(
        found.get_tf_dataset(), options, length=found.num_batches, made_by_keras=True, is_generator=is_generator
    )


def _generator(generator: Iterator, options: DataOptions) -> Stream:
    """Returns the adapter of a generator.

    As in Keras, which keeps the generator's first two batches, each evaluation begins with these two again.
    """
    if options.steps is None:
        raise ValueError("The length of a generator is unknown: pass steps_per_epoch (or validation_steps, or steps).")
    found = _batches_of_keras((tf_dataset.as_tuple(batch) for batch in generator), options, is_generator=True)
    found.resume_caveat = (
        "a generator must return the same batches in every start and on every worker; a resumed run reads and skips "
        "the batches of finished steps"
    )
    return found


def _arrays(x: Any, y: Any, sample_weight: Any, options: DataOptions) -> RandomAccess:
    """Returns the adapter of arrays, which Keras checks, packs and converts."""
    if y is None and (sample_weight is not None or options.class_weight is not None):
        raise ValueError("Weights need targets. Received: y=None")
    if any(isinstance(part, int | float | str | np.generic) for part in keras.tree.flatten((x, y, sample_weight))):
        raise ValueError("A list means several inputs, as in Keras, not an array of numbers: use numpy.array(...).")
    if options.class_weight is not None:
        if keras.tree.is_nested(y):
            raise ValueError(f"class_weight is for models with a single output. Received: {len(y)} arrays of targets")
        sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, options.class_weight)
    elif sample_weight is not None and keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
        sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)
    packed = data_adapter_utils.pack_x_y_sample_weight(x, y, sample_weight)
    with tf.device("CPU:0"):
        data = array_slicing.convert_to_sliceable(packed, target_backend="tensorflow")
        # Tensors, not arrays: arrays would become constants of the map's graph.
        data = keras.tree.map_structure(_tensor, keras.tree.lists_to_tuples(data))
    data_adapter_utils.check_data_cardinality(data)
    num_examples = next((int(part.shape[0]) for part in keras.tree.flatten(data) if part is not None), 0)

    def rows_of(part: Any, ids: tf.Tensor) -> Any:
        if isinstance(part, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(part, ids)
        return tf.gather(part, ids) if tf.is_tensor(part) else None

    def read(ids: tf.Tensor) -> Any:
        return (keras.tree.traverse(functools.partial(rows_of, ids=ids), data),)

    return _examples(read, num_examples, options)


def _tensor(array: Any) -> Any:
    return tf.convert_to_tensor(array) if isinstance(array, np.ndarray) else array


def _source(source: Any, options: DataOptions) -> RandomAccess:
    def read(ids: tf.Tensor) -> tuple:
        batch = keras.tree.lists_to_tuples(source.read(ids))  # `Dataset.map` would stack a list.
        if isinstance(batch, dict) and "label" in batch:
            inputs = {name: value for name, value in batch.items() if name not in ("label", "sample_weight")}
            weights = [batch[name] for name in ("sample_weight",) if name in batch]
            batch = (next(iter(inputs.values())) if len(inputs) == 1 else inputs, batch["label"], *weights)
        return base.unpack(batch, options)

    return _examples(read, len(source), options)


def _examples(read: Any, num_examples: int, options: DataOptions) -> RandomAccess:
    if num_examples == 0:
        raise ValueError("The data has no examples.")
    default = -(-num_examples // options.steps) if options.steps else DEFAULT_BATCH_SIZE
    batch_size = min(options.batch_size or default, num_examples)
    steps = -(-num_examples // batch_size)
    return RandomAccess(
        read=read,
        num_examples=num_examples,
        batch_size=batch_size,
        steps=base.steps_of_epoch(options, steps),
        seed=options.seed,
        shuffle=options.shuffle,
    )
