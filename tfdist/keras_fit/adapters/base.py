"""Data adapters: arrays or datasets as shards of global batches, one shard per replica of this worker.

An element is {"data": (x,), (x, y) or (x, y, sample_weight), "count", "total"}: the examples of one replica in one
step, their number, and the number in the global batch (int64 []). Shards are consecutive rows, differ by at most one
example, and are not padded; a replica without examples gets one example with count 0.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import tf_dataset_adapter

from tfdist.data import order, read_ahead
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters.epoch_gate import EpochGate

# The parts of a batch.
_PARTS = ("x", "y", "sample_weight")


class EpochHooks:
    """Calls a data object's on_epoch_begin and on_epoch_end when Keras calls them, and as often.

    So what the hooks and a script's callbacks change in the object holds for the whole next epoch.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]):
        self._begin, self._end = begin, end
        self._epoch, self._within = -1, False
        # Called with an epoch that is repeated, at its end.
        self.validate: Callable[[int], None] = lambda epoch: None

    def reset(self, first: int) -> None:
        """Called before a training, whose first epoch is `first`: as Keras, which calls on_epoch_end there."""
        self._end()
        self._epoch = first - 1

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch of training; those before it are repeated on resume, because they may change the data."""
        while self._epoch < epoch:
            self._repeat_end()
            self._epoch += 1
            self._begin()
            self._within = True

    def repeat(self, steps: int, steps_per_epoch: int) -> None:
        """Repeats what a training of `steps` has called, if it was finished by an earlier start."""
        self.begin_epoch((steps - 1) // steps_per_epoch)
        if steps % steps_per_epoch == 0:
            self._repeat_end()

    def _repeat_end(self) -> None:
        if self._within:  # A training has ended its epoch by itself.
            self.end()
            self.validate(self._epoch)

    def begin_pass(self, *, reset: bool) -> None:
        """Begins an evaluation, which Keras resets the data for, or a prediction."""
        self.end()
        if reset:
            self._end()
        self._begin()
        self._within = True

    def end(self) -> None:
        """Ends the present epoch or pass, if there is one."""
        if self._within:
            self._within = False
            self._end()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataAdapter:
    """Data of one split; the same on every worker.

    The two kinds of adapters also have `element_spec`, the nested tf.TensorSpec of a global batch with an unknown batch
    dimension, and `smallest_batch`, a lower bound of the examples in a batch.
    """

    # Steps per epoch. If an epoch is not a pass over the data, passes continue in the next epoch.
    steps: int
    # Examples per step; the last step of a pass may have fewer.
    batch_size: int
    # Why an exact resume is not guaranteed with this data; None: it is.
    resume_caveat: str | None = None
    # A message, if workers may read the data in different orders.
    order_unknown: str | None = None
    # Hooks of the data around each epoch, which is read by itself; None: steps are read on into the next epoch.
    epoch_hooks: EpochHooks | None = None
    # Where Python code that makes batches waits for its epoch; None: none does.
    gate: EpochGate | None = None
    # The rows of each tensor of a batch, which may differ; (): those of all are `batch_size`.
    rows: tuple[int, ...] = ()

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        """Returns this worker's elements of the steps [start, stop), and more after them."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RandomAccessAdapter(DataAdapter):
    """Random access to single examples: every worker reads only its shard."""

    # read(ids int64 [n]) -> nested tensors [n, ...]
    read: Callable[[tf.Tensor], Any]
    num_examples: int
    seed: int
    shuffle: bool

    @property
    def pass_steps(self) -> int:
        """Steps per pass over all examples; the last may have fewer examples."""
        return -(-self.num_examples // self.batch_size)

    @property
    def smallest_batch(self) -> int:
        return self.num_examples - (self.pass_steps - 1) * self.batch_size

    @property
    def element_spec(self) -> Any:
        """Nested tf.TensorSpec of a global batch."""
        return self._spec(self.batch_size)

    def _spec(self, rows: int) -> Any:
        # The number of rows is static if all batches are full, as in Keras: `ops.squeeze(labels)` depends on it.
        full = self.num_examples % self.batch_size == 0
        ids = tf.data.Dataset.range(rows).batch(rows, drop_remainder=full)
        return ids.map(tf.autograph.experimental.do_not_convert(lambda ids: self.read(ids))).element_spec

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        def load(element: tf.Tensor) -> dict[str, Any]:
            step, replica = element // shard.local_replicas, shard.first_replica + element % shard.local_replicas
            ids, count, total = self.ids(step, replica, shard.num_replicas)
            return {"data": self.read(ids), "count": count, "total": total}

        elements = tf.data.Dataset.range(start * shard.local_replicas, stop * shard.local_replicas).repeat()
        load = tf.autograph.experimental.do_not_convert(load)
        rows = -(-self.batch_size // shard.num_replicas)
        calls, buffer = read_ahead.limits(self._spec(rows), rows=rows, local_replicas=shard.local_replicas)
        return elements.map(load, num_parallel_calls=calls, deterministic=True).prefetch(buffer)

    def ids(self, step: tf.Tensor, replica: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the examples of a replica in a step, int64 [n], their number, and that in the global batch."""
        epoch, first = step // self.pass_steps, step % self.pass_steps * self.batch_size
        total = tf.minimum(tf.constant(self.batch_size, tf.int64), self.num_examples - first)
        low, count = shard_bounds(replica, total, num_replicas)
        positions = first + low + tf.range(tf.maximum(count, 1))
        # Static shapes make some kernels and XLA faster.
        if self.num_examples % self.batch_size == 0 and self.batch_size % num_replicas == 0:
            positions = tf.ensure_shape(positions, [self.batch_size // num_replicas])
        if self.shuffle:
            positions = order.permute(positions, epoch, seed=self.seed, num_examples=self.num_examples)
        return positions, count, total


def shard_bounds(replica: tf.Tensor, total: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (low, count), int64 []: the rows of `replica` among `total` examples; low is always below total."""
    low, high = replica * total // num_replicas, (replica + 1) * total // num_replicas
    return low, high - low


def name_columns(batch: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch x, (x,), (x, y) or (x, y, sample_weight) under names such as `x["age"]`."""
    found = {}
    for path, value in keras.tree.flatten_with_path(batch if isinstance(batch, tuple) else (batch,)):
        name = _PARTS[path[0]] if path[0] < len(_PARTS) else f"part {path[0]}"
        name += "".join(f"[{key!r}]" for key in path[1:])
        for number, part in enumerate(tf.nest.flatten(value, expand_composites=True)):
            found[name if number == 0 else f"{name} ({number})"] = np.asarray(part)
    return found


def place_in_batch(low: int) -> Callable[[str, tuple[int, ...]], str]:
    """Returns `inspection.Rows.place` for rows from row `low` of a global batch on: "x[5, 4] of the batch"."""
    return lambda column, at: f"{column}{indices(low + at[0], *at[1:])} of the batch"


def indices(*numbers: int) -> str:
    """Returns indices of an array as text: "[5, 4]"."""
    return f"[{', '.join(map(str, numbers))}]"


def _rows(part: Any, low: tf.Tensor, count: tf.Tensor) -> Any:
    """Returns `count` rows from `low` on, one at least."""
    count = tf.maximum(count, 1)
    if not isinstance(part, tf.SparseTensor):
        return part[low : low + count]
    others = part.dense_shape[1:]
    sliced = tf.sparse.slice(part, tf.concat([[low], tf.zeros_like(others)], 0), tf.concat([[count], others], 0))
    sliced.indices.set_shape([None, part.shape.rank])
    return sliced


def _check_rows(totals: list[tf.Tensor], replicas: int) -> list[tf.Operation]:
    """Checks that tensors of different numbers of rows, such as labelled and unlabelled images, have equal shards."""
    sizes = tf.stack(totals)
    equal = tf.reduce_all(tf.equal(sizes, sizes[0])) | tf.reduce_all(tf.equal(sizes % replicas, 0))
    text = (
        f"A batch holds tensors of different numbers of rows, which {replicas} replicas must divide: use batch(N, "
        "drop_remainder=True), with an N that they divide. Rows:"
    )
    return [] if len(totals) == 1 or replicas == 1 else [tf.debugging.Assert(equal, [text, sizes], summarize=-1)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchAdapter(DataAdapter):
    """A sequence of global batches, from which each replica takes its rows."""

    # stream(start, stop) -> global batches, epoch after epoch: nested tensors [batch, ...].
    stream: Callable[[int, int], tf.data.Dataset]
    element_spec: Any
    smallest_batch: int
    # Reads the columns, by name, that workers compare at the start; None: reading would consume them.
    sample: Callable[[], dict[str, np.ndarray]] | None
    # sharded(shard, start, stop) -> this worker's elements, without the work for other workers' rows; None:
    # every worker builds whole batches.
    sharded: Callable[[ReplicaShard, int, int], tf.data.Dataset] | None = None
    # Whether nothing is read after the last step: the next pass would take seeds from a shuffle.
    stops: bool = False
    # count_passes(steps, ended_early): counts the passes over a shuffle in a finished call, or draws what an earlier
    # start has drawn from a generator; None: neither.
    count_passes: Callable[[int, bool], None] | None = None
    # (steps) -> the first of them whose batch had a value that is not finite, and a sentence about it; None: none had.
    # For data that may differ when it is read again.
    first_nonfinite: Callable[[Iterable[int]], tuple[int, str] | None] | None = None
    # Applied to the rows of a replica: `unpack(batch)` -> (x,), (x, y) or (x, y, sample_weight); None: they are that.
    unpack: Callable[[Any], tuple] | None = None

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        rows = -(-self.batch_size // shard.num_replicas)
        if self.sharded is not None:
            elements = self._endless(self.sharded(shard, start, stop))
            return read_ahead.prefetch(elements, rows=rows, local_replicas=shard.local_replicas)

        def shards(*batch: Any) -> tf.data.Dataset:
            def load(local: tf.Tensor) -> dict[str, Any]:
                flat = tf.nest.flatten(batch)
                totals = [tf.shape(whole, out_type=tf.int64)[0] for whole in flat]
                with tf.control_dependencies(_check_rows(totals, shard.num_replicas)):
                    bounds = [shard_bounds(shard.first_replica + local, n, shard.num_replicas) for n in totals]
                parts = [_rows(whole, *one) for whole, one in zip(flat, bounds, strict=True)]
                for part, whole in zip(parts, flat, strict=True):
                    size = whole.shape[0] if isinstance(part, tf.Tensor) and whole.shape.rank else None
                    if size and size % shard.num_replicas == 0:  # As in Keras: a step may read it from the shape.
                        part.set_shape([size // shard.num_replicas, *whole.shape[1:]])
                data = tf.nest.pack_sequence_as(batch, parts)
                return {"data": data, "count": bounds[0][1], "total": totals[0]}

            return tf.data.Dataset.range(shard.local_replicas).map(load)

        def unpack_element(element: dict[str, Any]) -> dict[str, Any]:
            return element | {"data": self.unpack(element["data"])}

        elements = self.stream(start, stop).flat_map(shards)
        if self.unpack is not None:
            unpack_element = tf.autograph.experimental.do_not_convert(unpack_element)
            elements = elements.map(unpack_element, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return read_ahead.prefetch(self._endless(elements), rows=rows, local_replicas=shard.local_replicas)

    def _endless(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Returns `elements` as a dataset without end: `tf.distribute` would else ask each replica for its end."""
        if not self.stops:
            return elements.repeat()
        # After the last step comes an error, which nobody reads.
        return elements.apply(tf.data.experimental.assert_cardinality(tf.data.experimental.INFINITE_CARDINALITY))


def end_passes(adapter: DataAdapter, steps: int, *, ended_early: bool = False) -> None:
    """Ends a call of `steps` steps: calls the last epoch hook, and counts the passes over a shuffle for later calls."""
    if adapter.epoch_hooks is not None and not ended_early:
        adapter.epoch_hooks.end()
    if isinstance(adapter, BatchAdapter) and adapter.count_passes is not None:
        adapter.count_passes(steps, ended_early)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Options for reading the data, from the arguments of `fit`, `evaluate` or `predict`."""

    batch_size: int | None = None
    # Steps per epoch; None: one pass over the data.
    steps: int | None = None
    shuffle: bool = False
    class_weight: dict[int, float] | None = None
    seed: int = 0
    # Whether a shuffle continues after the passes of earlier calls, as in Keras.
    continues: bool = False
    # Whether a loop of the script's own reads the data: Keras makes an iterator more in an epoch.
    own_loop: bool = False
    # Rank of each model input, including the batch dimension; None: unknown.
    input_ranks: tuple[int, ...] | None = None
    # Whether elements are passed on as ((data),), as the model's own step receives `data` from Keras.
    as_given: bool = False
    # preprocess(x, y, sample_weight) -> a batch for the model; None: the data is one.
    preprocess: Callable[..., Any] | None = None


def steps_of_epoch(options: DataOptions, batches: int) -> int:
    """Returns the steps of an epoch over data of `batches`: as in Keras, an epoch ends where the data ends."""
    if options.steps is None or options.steps <= batches:
        return options.steps or batches
    warnings.warn(
        f"The data ends after {batches} batches, and so does each epoch, as in Keras. Received: {options.steps} as "
        "steps_per_epoch, validation_steps or steps. Call repeat() on a tf.data.Dataset to read it again in an epoch.",
        stacklevel=2,
    )
    return batches


def unpack(batch: Any, options: DataOptions) -> tuple:
    """Returns a batch as (x,), (x, y) or (x, y, sample_weight), preprocessed, with class weights as sample weights.

    With `options.as_given`, returns (batch,); the batch is unchanged, except for class weights.
    """
    if options.preprocess is not None:
        batch = options.preprocess(*keras.utils.unpack_x_y_sample_weight(batch))
    if options.as_given and options.class_weight is None:
        return (batch,)
    parts = tuple(part for part in keras.utils.unpack_x_y_sample_weight(batch) if part is not None)
    if options.class_weight is None:
        return parts
    if len(parts) < 2:
        raise ValueError("class_weight needs targets, but the data has none.")
    weighted = tf_dataset_adapter.make_class_weight_map_fn(options.class_weight)(*parts)
    return (weighted,) if options.as_given else weighted
