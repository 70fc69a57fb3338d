"""Chooses the data adapter for `x`: arrays, a source, a tf.data dataset, a Keras PyDataset or a generator."""

import dataclasses
import numbers
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_data_adapter, array_slicing, data_adapter_utils

from tfdist.keras_fit.adapters import base, preprocess, py_dataset, tf_dataset
from tfdist.keras_fit.adapters.base import DataAdapter, DataOptions, RandomAccess
from tfdist.keras_fit.adapters.stream import Stream

# The default of `model.fit`.
DEFAULT_BATCH_SIZE = 32
# Of the batches of a generator without a number of steps, which are kept in memory.
_MAX_BYTES = 4_000_000_000


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
    if not is_arrays(x) and (y is not None or sample_weight is not None):
        raise ValueError(f"A {type(x).__name__} contains targets and weights: remove y and sample_weight.")
    if isinstance(x, tf.data.Dataset):
        return tf_dataset.of_dataset(x, options)
    if isinstance(x, keras.utils.PyDataset):
        return py_dataset.of_py_dataset(x, options)
    if isinstance(x, Iterator):
        return _generator(x, options)
    if _is_source(x):
        return _source(x, options)
    if _is_of_other_library(x) or _has_sparse_matrices((x, y, sample_weight)):
        return _by_keras(x, y, sample_weight, options)
    return _arrays(x, y, sample_weight, options)


def split(x: Any, y: Any, sample_weight: Any, part: float) -> tuple[tuple, tuple]:
    """Splits arrays as Keras' `validation_split` does.

    Returns:
        (x, y, sample_weight) of the first examples, and of the last fraction `part` of them.

    Raises:
        ValueError: the data is not arrays, or the fraction is not between 0 and 1.
    """
    if not 0 < part < 1:
        raise ValueError(f"validation_split must be between 0 and 1. Received: {part!r}")
    if not is_arrays(x):
        raise ValueError(f"validation_split={part} needs arrays: pass validation_data. Received: {type(x).__name__}")
    return array_slicing.train_validation_split(
        keras.tree.map_structure(_sliceable, (x, y, sample_weight)), validation_split=part
    )


def _sliceable(array: Any) -> Any:
    """Keras slices no arrays of texts, but arrays of objects."""
    return array.astype(object) if isinstance(array, np.ndarray) and array.dtype.kind in "US" else array


def is_arrays(x: Any) -> bool:
    """Returns whether `x` is arrays, and not an object that contains targets as well."""
    contains_targets = isinstance(x, tf.data.Dataset | keras.utils.PyDataset | Iterator) or _is_source(x)
    return not contains_targets and not _is_of_other_library(x)


def _is_source(x: Any) -> bool:
    return hasattr(x, "read") and hasattr(x, "__len__")


def _is_of_other_library(x: Any) -> bool:
    """Returns whether `x` is an object that Keras may know, such as a dataset of grain or a DataLoader of torch."""
    return not keras.tree.is_nested(x) and not array_data_adapter.can_convert_arrays(x)


def _has_sparse_matrices(data: Any) -> bool:
    return any(data_adapter_utils.is_scipy_sparse(part) for part in keras.tree.flatten(data))


def _by_keras(x: Any, y: Any, sample_weight: Any, options: DataOptions, **known: Any) -> Stream:
    """Returns the adapter of the batches that Keras makes of data, or raises its ValueError, which names the type."""
    made = {"batch_size": options.batch_size, "steps_per_epoch": options.steps}
    given = dataclasses.replace(options, batch_size=None, input_ranks=None)
    if is_arrays(x):
        made |= {"class_weight": options.class_weight, "shuffle": options.shuffle}
        given = dataclasses.replace(given, class_weight=None)
    found = data_adapters.get_data_adapter(x, y, sample_weight, **made)
    known = {"length": found.num_batches, "made_by_keras": True, **known}
    return tf_dataset.of_dataset(found.get_tf_dataset(), given, **known)


def _generator(generator: Iterator, options: DataOptions) -> Stream:
    """Returns the adapter of a generator: as in Keras, each evaluation begins with its first two batches."""
    known = {"is_generator": True}
    if options.steps is None:
        drawn = _draw_all(generator)
        known["length"], generator = len(drawn), iter(drawn)
    found = _by_keras((py_dataset.as_tuple(batch) for batch in generator), None, None, options, **known)
    found.resume_caveat = (
        "a generator must return the same batches in every start and on every worker; a resumed run reads and skips "
        "the batches of finished steps"
    )
    return found


def _draw_all(generator: Iterator) -> list[Any]:
    """Reads a generator to its end, and returns its batches; raises ValueError if they are too large for the memory."""
    drawn, size = [], 0
    for batch in generator:
        drawn.append(batch)
        size += sum(np.asarray(part).nbytes for part in keras.tree.flatten(batch))
        if size > _MAX_BYTES:
            raise ValueError(
                f"The generator has not ended after {size / 1e9:.1f} GB: pass steps_per_epoch (or validation_steps, or "
                "steps)."
            )
    return drawn


def _arrays(x: Any, y: Any, sample_weight: Any, options: DataOptions) -> RandomAccess:
    if options.preprocess is not None:
        x, y, sample_weight = (preprocess.as_arrays(part) for part in (x, y, sample_weight))
    if y is None and (sample_weight is not None or options.class_weight is not None):
        raise ValueError("Weights need targets. Received: y=None")
    if options.class_weight is not None:
        if keras.tree.is_nested(y):
            raise ValueError(f"class_weight is for models with a single output. Received: {len(y)} arrays of targets")
        sample_weight = _weights_of_classes(y, options.class_weight)
    elif sample_weight is not None and keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
        sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)
    parts = (x, *(part for part in (y, sample_weight) if part is not None))
    for part in parts:
        _check_no_lists(part)
    with tf.device("CPU:0"):
        data = tf.nest.map_structure(_tensor, keras.tree.lists_to_tuples(parts))
    sizes = {int(tensor.shape[0]) for tensor in _present(data)}
    if len(sizes) != 1:
        names = ("x", *(name for name, part in (("y", y), ("sample_weight", sample_weight)) if part is not None))
        sizes_of = [", ".join(str(tensor.shape[0]) for tensor in _present(part)) for part in data]
        found = [f"{name} {size}" for name, size in zip(names, sizes_of, strict=True)]
        raise ValueError(f"All arrays must have the same number of examples. Received: {'; '.join(found)}")
    # Tensors, not arrays: arrays would become constants of the map's graph.
    preprocesses = options.preprocess is not None
    if options.as_given and not preprocesses:  # As Keras packs them.
        data = (data[0] if len(data) == 1 and not isinstance(x, list | tuple) else data,)

    def read(ids: tf.Tensor) -> Any:
        rows = tf.nest.map_structure(lambda one: None if one is None else tf.gather(one, ids), data)
        return base.unpack(rows, options) if preprocesses else rows

    # As keras-hub, which does not shuffle arrays.
    return _examples(read, sizes.pop(), dataclasses.replace(options, shuffle=options.shuffle and not preprocesses))


def _weights_of_classes(y: Any, class_weight: dict[int, float]) -> np.ndarray:
    """Returns the weight of each example, [examples], as `Model.fit` does; `y` has labels or one-hot rows."""
    labels = keras.ops.convert_to_numpy(y)
    if labels.ndim > 1:
        labels = np.squeeze(labels, -1) if labels.shape[-1] == 1 else np.argmax(labels, -1)
    weights = [class_weight.get(int(label), 1.0) for label in np.round(labels)]
    return np.array(weights, keras.config.floatx())


def _present(data: Any) -> list[Any]:
    """Returns the tensors of nested data; None is the target of an output without a loss."""
    return [one for one in tf.nest.flatten(data) if one is not None]


def _check_no_lists(data: Any) -> None:
    """Checks that no list or tuple holds numbers: Keras takes lists as several inputs, not as an array."""
    for part in data if isinstance(data, list | tuple) else ():
        if isinstance(part, bool | int | float | str | np.generic):
            raise ValueError(
                f"Lists are several inputs, as in Keras, and not arrays: use numpy.array(...). Received: a "
                f"{type(data).__name__} of {len(data)} values of type {type(part).__name__}"
            )
        _check_no_lists(part)


def _tensor(array: Any) -> Any:
    if array is None:
        return None
    if isinstance(array, tf.SparseTensor):
        raise ValueError(
            "Rows of a SparseTensor cannot be read one by one: pass a tf.data.Dataset, such as "
            f"tf.data.Dataset.from_tensor_slices((x, y)).batch(32). Received: shape {tuple(array.shape)}"
        )
    if np.ma.is_masked(array):
        advice = "fill them (numpy.ma.filled), and give them no weight by sample_weight"
        raise ValueError(f"An array has masked values, which would count: {advice}. Received: shape {array.shape}")
    if hasattr(array, "iloc") and getattr(array, "ndim", 0) == 1:  # A pandas.Series is a column, as in Keras.
        array = np.expand_dims(array.to_numpy(), -1)
    if hasattr(array, "iloc") and all(kind.kind in "biuf" for kind in array.dtypes):
        kinds = {kind.kind for kind in array.dtypes}
        array = array.astype(keras.config.floatx()) if "b" in kinds and len(kinds) > 1 else array
    array = array if tf.is_tensor(array) else np.asarray(array)
    if isinstance(array, np.ndarray) and array.dtype == object and len(array.shape):
        if all(isinstance(one, str) for one in array.reshape(-1)):
            return tf.convert_to_tensor(array, tf.string)
        raise ValueError(
            "An array of Python objects is no tensor: convert it, such as array.astype('float32'), or make its rows "
            f"equally long. Received: shape {array.shape}"
        )
    if len(array.shape) == 0:
        raise ValueError(
            "Data must be arrays with one row per example, a tf.data.Dataset, a keras.utils.PyDataset, a generator or "
            f"a source with len() and read(ids). Received: {type(array).__name__} of {array.dtype} {array.shape}"
        )
    tensor = array if isinstance(array, tf.RaggedTensor) else tf.convert_to_tensor(array)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _source(source: Any, options: DataOptions) -> RandomAccess:
    def read(ids: tf.Tensor) -> tuple:
        batch = source.read(ids)
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
