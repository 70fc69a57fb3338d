"""Makes feeds of what scripts give: arrays, sources, tf.data datasets, Keras' own datasets and generators."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base, inspect_dataset, py_dataset, shard_before_map
from tfdist.keras_fit.adapters.base import BatchAdapter, DataAdapter, DataOptions, RandomAccessAdapter

# Keras' own.
DEFAULT_BATCH_SIZE = 32


def make_data_adapter(x: Any, y: Any, sample_weight: Any, wish: DataOptions) -> DataAdapter:
    """Makes a feed of what `model.fit` would take; see `script.fit` for what `x`, `y` and `sample_weight` can be.

    Raises:
        ValueError: the data is of no known kind, its parts do not fit together, or its length cannot be known.
    """
    for name, value in (("batch_size", wish.batch_size), ("steps_per_epoch", wish.steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1. Received: {value}")
    if wish.class_weight is not None and sample_weight is not None:
        raise ValueError("Give either class_weight or sample_weight: class_weight makes sample weights itself.")
    single = isinstance(x, tf.data.Dataset | keras.utils.PyDataset | Iterator) or _is_source(x)
    if single and (y is not None or sample_weight is not None):
        raise ValueError(f"A {type(x).__name__} gives targets and weights itself: leave out y and sample_weight.")
    if isinstance(x, tf.data.Dataset):
        return _dataset(x, wish)
    if isinstance(x, keras.utils.PyDataset):
        return py_dataset.of_py_dataset(x, wish)
    if isinstance(x, Iterator):
        return py_dataset.of_generator(x, wish)
    if _is_source(x):
        return _source(x, wish)
    return _arrays(x, y, sample_weight, wish)


def split(x: Any, y: Any, sample_weight: Any, part: float) -> tuple[tuple, tuple]:
    """Returns (x, y, sample_weight) of the first examples and of the last `part` of them, as `validation_split` means.

    Raises:
        ValueError: the data is no arrays.
    """
    if isinstance(x, tf.data.Dataset | keras.utils.PyDataset | Iterator) or _is_source(x):
        raise ValueError(f"validation_split={part} needs arrays. Received: {type(x).__name__}; pass validation_data.")
    return array_slicing.train_validation_split((x, y, sample_weight), validation_split=part)


def _is_source(x: Any) -> bool:
    return hasattr(x, "read") and hasattr(x, "__len__")


def _arrays(x: Any, y: Any, sample_weight: Any, wish: DataOptions) -> RandomAccessAdapter:
    if y is None and (sample_weight is not None or wish.class_weight is not None):
        raise ValueError("Weights need targets. Received: y=None")
    if wish.class_weight is not None:
        if keras.tree.is_nested(y):
            raise ValueError(f"class_weight is for models with a single output. Received: {len(y)} arrays of targets")
        sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, wish.class_weight)
    elif sample_weight is not None and keras.tree.is_nested(y) and not keras.tree.is_nested(sample_weight):
        sample_weight = keras.tree.map_structure(lambda _: sample_weight, y)
    parts = (x, *(part for part in (y, sample_weight) if part is not None))
    with tf.device("CPU:0"):
        data = tf.nest.map_structure(_tensor, keras.tree.lists_to_tuples(parts))
    sizes = {int(tensor.shape[0]) for tensor in tf.nest.flatten(data)}
    if len(sizes) != 1:
        raise ValueError(f"All arrays must have the same number of examples. Received: {sorted(sizes)}")
    # Tensors made outside of the map: arrays would become constants of its graph.
    return _examples(lambda ids: tf.nest.map_structure(lambda tensor: tf.gather(tensor, ids), data), sizes.pop(), wish)


def _tensor(array: Any) -> tf.Tensor:
    array = array if tf.is_tensor(array) else np.asarray(array)
    if array.dtype == object or len(array.shape) == 0:
        raise ValueError(
            "Data must be arrays with one row per example, a tf.data.Dataset, a keras.utils.PyDataset, a generator or "
            f"a source with len() and read(ids). Received: {type(array).__name__} of {array.dtype} {array.shape}"
        )
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(array.dtype)):
        return tf.cast(tf.convert_to_tensor(array), keras.config.floatx())
    return tf.convert_to_tensor(array)


def _source(source: Any, wish: DataOptions) -> RandomAccessAdapter:
    def read(ids: tf.Tensor) -> tuple:
        batch = source.read(ids)
        if isinstance(batch, dict) and "label" in batch:
            inputs = {name: value for name, value in batch.items() if name not in ("label", "sample_weight")}
            weights = [batch[name] for name in ("sample_weight",) if name in batch]
            batch = (next(iter(inputs.values())) if len(inputs) == 1 else inputs, batch["label"], *weights)
        return base.with_class_weight(batch, wish)

    return _examples(read, len(source), wish)


def _examples(read: Any, num_examples: int, wish: DataOptions) -> RandomAccessAdapter:
    if num_examples == 0:
        raise ValueError("The data has no examples.")
    default = -(-num_examples // wish.steps) if wish.steps else DEFAULT_BATCH_SIZE
    batch_size = min(wish.batch_size or default, num_examples)
    steps = -(-num_examples // batch_size)
    return RandomAccessAdapter(
        read=read,
        num_examples=num_examples,
        batch_size=batch_size,
        steps=wish.steps or steps,
        seed=wish.seed,
        shuffle=wish.shuffle,
    )


def _dataset(dataset: tf.data.Dataset, wish: DataOptions) -> BatchAdapter:
    inputs = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
    ranks = tuple(spec.shape.rank for spec in tf.nest.flatten(inputs))
    # Without knowledge of the model, a batch size is only given where there are no batches yet.
    single = wish.batch_size is not None
    if wish.input_ranks is not None and None not in ranks and len(ranks) == len(wish.input_ranks):
        single = sorted(rank + 1 for rank in ranks) == sorted(wish.input_ranks)
        if single and wish.batch_size is None:
            raise ValueError("The tf.data.Dataset gives single examples: pass batch_size, or batch it.")
    if single:
        dataset = dataset.batch(wish.batch_size)
    parts = shard_before_map.split_before_maps(dataset)
    dataset = dataset.map(lambda *given: base.with_class_weight(given if len(given) > 1 else given[0], wish))
    cardinality = int(dataset.cardinality())
    if wish.steps is None and cardinality == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The tf.data.Dataset never ends: pass steps_per_epoch (or validation_steps, or steps).")
    if cardinality == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    length = cardinality if cardinality > 0 else None
    if length is None and wish.steps is None:
        length = inspect_dataset.count(dataset)
    nature = inspect_dataset.dataset_traits(dataset)
    first = tf.nest.flatten(dataset.element_spec)[0].shape
    static = first[0] if first.rank else None
    known = static or wish.batch_size or (parts.batch_size if parts else None)

    def passes(first_step: int, dataset: tf.data.Dataset = dataset) -> tf.data.Dataset:
        # Without shuffling, epochs are alike: those that are done need not be read again.
        if length is not None and nature.repeats:
            return dataset.skip(first_step % length).concatenate(dataset.repeat()) if first_step else dataset.repeat()
        return dataset.repeat().skip(first_step)

    def own(share: ReplicaShard, first_step: int) -> tf.data.Dataset:
        return shard_before_map.sharded_elements(
            parts, lambda raw: passes(first_step, raw), share, lambda rows: base.with_class_weight(rows, wish)
        )

    return BatchAdapter(
        stream=passes,
        steps=wish.steps or length,
        batch_size=known or inspect_dataset.first_batch_size(dataset),
        element_spec=dataset.element_spec,
        smallest_batch=static or 1,
        sample=lambda: inspect_dataset.sample(dataset),
        weakness=nature.weakness,
        own=None if parts is None else own,
    )
