"""Makes feeds of what scripts give: arrays, sources, tf.data datasets, Keras' own datasets and generators."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils, tf_dataset_adapter

from tfdist.data import order, pipelines
from tfdist.data.feeds import Batches, Examples, Feed

# Keras' own.
DEFAULT_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How the data shall be taken."""

    batch_size: int | None = None
    # Steps in an epoch; None: until the data ends.
    steps: int | None = None
    shuffle: bool = False
    class_weight: dict[int, float] | None = None
    seed: int = 0
    # The rank of each input of the model, with the batch's own dimension; None where the model does not say.
    input_ranks: tuple[int, ...] | None = None


def open_feed(x: Any, y: Any, sample_weight: Any, wish: Wish) -> Feed:
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
        return _py_dataset(x, wish)
    if isinstance(x, Iterator):
        return _generator(x, wish)
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


def _arrays(x: Any, y: Any, sample_weight: Any, wish: Wish) -> Examples:
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


def _source(source: Any, wish: Wish) -> Examples:
    def read(ids: tf.Tensor) -> tuple:
        batch = source.read(ids)
        if isinstance(batch, dict) and "label" in batch:
            inputs = {name: value for name, value in batch.items() if name not in ("label", "sample_weight")}
            weights = [batch[name] for name in ("sample_weight",) if name in batch]
            batch = (next(iter(inputs.values())) if len(inputs) == 1 else inputs, batch["label"], *weights)
        return _weighted(batch, wish)

    return _examples(read, len(source), wish)


def _examples(read: Any, num_examples: int, wish: Wish) -> Examples:
    if num_examples == 0:
        raise ValueError("The data has no examples.")
    default = -(-num_examples // wish.steps) if wish.steps else DEFAULT_BATCH_SIZE
    batch_size = min(wish.batch_size or default, num_examples)
    steps = -(-num_examples // batch_size)
    return Examples(
        read=read,
        num_examples=num_examples,
        batch_size=batch_size,
        steps=wish.steps or steps,
        seed=wish.seed,
        shuffle=wish.shuffle,
    )


def _weighted(batch: Any, wish: Wish) -> tuple:
    """Makes (x,), (x, y) or (x, y, sample_weight) of a batch, with the weights of its classes."""
    parts = tuple(part for part in keras.utils.unpack_x_y_sample_weight(batch) if part is not None)
    if wish.class_weight is None:
        return parts
    if len(parts) < 2:
        raise ValueError("class_weight needs targets, and the data has none.")
    return tf_dataset_adapter.make_class_weight_map_fn(wish.class_weight)(*parts)


def _dataset(dataset: tf.data.Dataset, wish: Wish) -> Batches:
    dataset = dataset.map(lambda *parts: _weighted(parts if len(parts) > 1 else parts[0], wish))
    ranks = tuple(spec.shape.rank for spec in tf.nest.flatten(dataset.element_spec[0]))
    # Without knowledge of the model, a batch size is only given where there are no batches yet.
    single = wish.batch_size is not None
    if wish.input_ranks is not None and None not in ranks and len(ranks) == len(wish.input_ranks):
        single = sorted(rank + 1 for rank in ranks) == sorted(wish.input_ranks)
        if single and wish.batch_size is None:
            raise ValueError("The tf.data.Dataset gives single examples: pass batch_size, or batch it.")
    if single:
        dataset = dataset.batch(wish.batch_size)
    cardinality = int(dataset.cardinality())
    if wish.steps is None and cardinality == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The tf.data.Dataset never ends: pass steps_per_epoch (or validation_steps, or steps).")
    if cardinality == 0:
        raise ValueError("The tf.data.Dataset is empty.")
    length = cardinality if cardinality > 0 else None
    if length is None and wish.steps is None:
        length = pipelines.count(dataset)
    nature = pipelines.nature(dataset)
    first = tf.nest.flatten(dataset.element_spec)[0].shape
    known = first[0] if first.rank else None

    def stream(first_step: int) -> tf.data.Dataset:
        # Without shuffling, epochs are alike: those that are done need not be read again.
        if length is not None and nature.repeats:
            return dataset.skip(first_step % length).concatenate(dataset.repeat()) if first_step else dataset.repeat()
        return dataset.repeat().skip(first_step)

    return Batches(
        stream=stream,
        steps=wish.steps or length,
        batch_size=known or wish.batch_size or pipelines.first_batch_size(dataset),
        element_spec=dataset.element_spec,
        smallest_batch=known or 1,
        weakness=nature.weakness,
    )


def _py_dataset(data: keras.utils.PyDataset, wish: Wish) -> Batches:
    try:
        length = data.num_batches
    except NotImplementedError:
        length = None
    if length == 0:
        raise ValueError(f"The {type(data).__name__} has no batches.")
    if length is None and wish.steps is None:
        raise ValueError(f"The {type(data).__name__} never ends: pass steps_per_epoch (or validation_steps, or steps).")
    samples = [_numpy_batch(data[index]) for index in range(min(2, length or 2))]
    spec = data_adapter_utils.get_tensor_spec(samples)
    told = [name for name in ("on_epoch_begin", "on_epoch_end") if _overrides(data, name)]
    per_epoch = length or wish.steps
    epochs_told = itertools.count()
    last_epoch = {"now": None}

    def tell(epoch: int) -> None:
        # In the order of the steps, and at a resume for the epochs before: what they do to the order is done again.
        while last_epoch["now"] is None or last_epoch["now"] < epoch:
            if last_epoch["now"] is not None:
                data.on_epoch_end()
            last_epoch["now"] = next(epochs_told)
            data.on_epoch_begin()

    def read(step: np.int64, index: np.int64) -> list[np.ndarray]:
        if told:
            tell(int(step) // per_epoch)
        return [np.asarray(part) for part in keras.tree.flatten(_numpy_batch(data[int(index)]))]

    def load(step: tf.Tensor) -> Any:
        index = step
        if length is not None:
            epoch, index = step // length, step % length
            if wish.shuffle:
                index = order.permuted(index[tf.newaxis], epoch, seed=wish.seed, num_examples=length)[0]
        flat = tf.numpy_function(read, [step, index], [one.dtype for one in tf.nest.flatten(spec)])
        flat = flat if isinstance(flat, list | tuple) else [flat]
        shaped = [tf.ensure_shape(one, like.shape) for one, like in zip(flat, tf.nest.flatten(spec), strict=True)]
        return _weighted(tf.nest.pack_sequence_as(spec, shaped), wish)

    def stream(first_step: int) -> tf.data.Dataset:
        steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max)
        parallel = 1 if told else max(1, data.workers)
        return steps.map(load, num_parallel_calls=parallel, deterministic=True)

    weakness = None
    if told:
        weakness = f"{type(data).__name__}.{told[-1]} must do the same in every start and on every worker"
    return Batches(
        stream=stream,
        steps=wish.steps or length,
        batch_size=len(keras.tree.flatten(samples[0])[0]),
        element_spec=stream(0).element_spec,
        smallest_batch=1,
        weakness=weakness,
    )


def _overrides(data: keras.utils.PyDataset, name: str) -> bool:
    return getattr(type(data), name) is not getattr(keras.utils.PyDataset, name)


def _numpy_batch(batch: Any) -> Any:
    if not isinstance(batch, tuple | list | dict | np.ndarray):
        raise ValueError(
            f"A batch must be x, (x,), (x, y) or (x, y, sample_weight) of arrays. Received: {type(batch).__name__}"
        )
    batch = tuple(batch) if isinstance(batch, list) else batch
    return batch if isinstance(batch, tuple) else (batch,)


def _generator(generator: Iterator, wish: Wish) -> Batches:
    if wish.steps is None:
        raise ValueError("A generator does not tell its length: pass steps_per_epoch (or validation_steps, or steps).")
    samples = [_numpy_batch(batch) for batch in itertools.islice(generator, 2)]
    if not samples:
        raise ValueError("The generator gave nothing.")
    spec = data_adapter_utils.get_tensor_spec(samples)
    batches = itertools.chain(samples, (_numpy_batch(batch) for batch in generator))
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)
    dataset = dataset.map(lambda *parts: _weighted(parts, wish))
    return Batches(
        stream=dataset.skip,
        steps=wish.steps,
        batch_size=len(keras.tree.flatten(samples[0])[0]),
        element_spec=dataset.element_spec,
        smallest_batch=1,
        weakness="a generator must give the same batches in every start and on every worker; a resumed run draws and "
        "leaves out those that are done",
        peek=False,
    )
