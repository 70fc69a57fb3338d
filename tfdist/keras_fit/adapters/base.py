"""Data adapters: the data of `model.fit` as shards of global batches, one shard per replica of this worker.

An element is {"data": (batch,), "count", "total"}: the examples of one replica in one step, their number, and the
number in the global batch (int64 []). `batch` is what a step gets: x, (x,), (x, y) or (x, y, sample_weight). Shards are
consecutive rows, differ by at most one example, and are not padded; a replica without examples gets one example with
count 0.

There are two kinds of data. `RandomAccess` reads examples by their numbers, and each worker only its own.
`stream.Stream` is a sequence of batches in the order of Keras, of which each worker keeps its rows.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import tf_dataset_adapter

from tfdist.data import inspection, order, read_ahead
from tfdist.data.inspection import Rows
from tfdist.data.stream import ReplicaShard

# The parts of a batch.
_PARTS = ("x", "y", "sample_weight")


@dataclasses.dataclass(kw_only=True, eq=False)
class DataAdapter:
    """Data of one split; the same on every worker.

    The two kinds also have
        `element_spec`, (the nested tf.TensorSpec of a global batch,); its batch dimension may be unknown;
        `dataset(shard, start, stop)`, this worker's elements of the steps [start, stop), without an end; a stream gives
            those of one epoch from `start` on, whatever `stop` is;
        `sample(count)`, column -> values of `count` examples or of one element; {} if reading would consume the data.
    """

    # Steps per epoch.
    steps: int
    # Examples per step; the last step of a pass may have fewer.
    batch_size: int
    # Why an exact resume is not guaranteed with this data; None: it is.
    resume_caveat: str | None = None
    # A message, if workers may read the data in different orders.
    order_unknown: str | None = None
    # A message about work that every worker does for all rows; None: there is none, or little.
    work_of_all: str | None = None
    # Whether the number of batches is not known before they are read, and `steps` was counted.
    size_unknown: bool = False
    # Whether the batches depend on Python code, a random state or variables. Reading them may draw random numbers.
    made_by_code: bool = False
    # The number of rows of each tensor of a batch; (): all have `batch_size` rows.
    rows: tuple[int, ...] = ()

    def one_pass(self, shard: ReplicaShard, *, reset: bool) -> tf.data.Dataset:
        """Begins an evaluation or a prediction, and returns this worker's elements.

        Args:
            reset: whether to reset the data first, as Keras does for an evaluation.
        """
        return self.dataset(shard, 0, self.steps)

    def end_epoch(self) -> None:
        """Ends an epoch, or a pass, of which all steps were made."""

    def repeat_epoch(self) -> None:
        """Repeats what an epoch of an earlier start has done to the data."""

    def repeat_pass(self) -> None:
        """Repeats what an evaluation of an earlier start has done to the data."""

    def first_nonfinite(self, shard: ReplicaShard, first_number: int, last_number: int) -> tuple[int, str] | None:
        """Returns the first of these steps, counted from 1, with a non-finite value, and a sentence about the value.

        Returns None if there is none.
        """
        return None


@dataclasses.dataclass(kw_only=True, eq=False)
class RandomAccess(DataAdapter):
    """Random access to single examples: every worker reads only its shard."""

    # read(ids int64 [n]) -> (batch,), nested tensors [n, ...]
    read: Callable[[tf.Tensor], Any]
    num_examples: int
    seed: int
    shuffle: bool

    @property
    def pass_steps(self) -> int:
        """Steps per pass over all examples; the last may have fewer examples."""
        return -(-self.num_examples // self.batch_size)

    @functools.cached_property
    def element_spec(self) -> Any:
        """(The nested tf.TensorSpec of a global batch,)."""
        if not self._is_static:
            return self._spec
        return spec_of(tf.data.Dataset.range(self.batch_size).batch(self.batch_size, drop_remainder=True), self.read)

    @functools.cached_property
    def _spec(self) -> Any:
        return spec_of(tf.data.Dataset.range(1).batch(1), self.read)

    @functools.cached_property
    def _is_static(self) -> bool:
        """Whether the number of rows is static: all batches are full, as in Keras, and none is ragged or sparse.

        `ops.squeeze(labels)` depends on it.
        """
        composite = tf.RaggedTensorSpec | tf.SparseTensorSpec
        full = self.num_examples % self.batch_size == 0
        return full and not any(isinstance(one, composite) for one in tf.nest.flatten(self._spec))

    def dataset(self, shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        def load(element: tf.Tensor) -> dict[str, Any]:
            step, replica = element // shard.local_replicas, shard.first_replica + element % shard.local_replicas
            ids, count, total = self.ids(step, replica, shard.num_replicas)
            return {"data": self.read(ids), "count": count, "total": total}

        elements = tf.data.Dataset.range(start * shard.local_replicas, stop * shard.local_replicas).repeat()
        load = tf.autograph.experimental.do_not_convert(load)
        rows = -(-self.batch_size // shard.num_replicas)
        calls, buffer = read_ahead.limits(self._spec, rows=rows, local_replicas=shard.local_replicas)
        return elements.map(load, num_parallel_calls=calls, deterministic=True).prefetch(buffer)

    def ids(self, step: tf.Tensor, replica: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the examples of a replica in a step, int64 [n], their number, and the number in the global batch."""
        epoch, first = step // self.pass_steps, step % self.pass_steps * self.batch_size
        total = tf.minimum(tf.constant(self.batch_size, tf.int64), self.num_examples - first)
        low, count = shard_bounds(replica, total, num_replicas)
        positions = first + low + tf.range(tf.maximum(count, 1))
        # Static shapes make some kernels and XLA faster.
        if self._is_static and self.batch_size % num_replicas == 0:
            positions = tf.ensure_shape(positions, [self.batch_size // num_replicas])
        if self.shuffle:
            positions = order.permute(positions, epoch, seed=self.seed, num_examples=self.num_examples)
        return positions, count, total

    def sample(self, count: int) -> dict[str, np.ndarray]:
        ids = np.unique(np.linspace(0, self.num_examples - 1, count).astype(np.int64))
        reading = tf.data.Dataset.from_tensors(ids).map(tf.autograph.experimental.do_not_convert(self.read))
        (batch,) = next(iter(reading))
        return arrays_of(batch)

    def first_nonfinite(self, shard: ReplicaShard, first_number: int, last_number: int) -> tuple[int, str] | None:
        return inspection.first_nonfinite(self._rows_of_steps(shard, first_number, last_number))

    def find_label(self, shard: ReplicaShard, label: int) -> str:
        """Returns the first target with this label, such as "y[17]"; "": none was found."""
        for rows in self._rows_of_steps(shard, 1, self.pass_steps):
            found = np.argwhere(rows.columns["y"] == label) if "y" in rows.columns else ()
            if len(found):
                return rows.place("y", tuple(int(index) for index in found[0]))
        return ""

    def _rows_of_steps(self, shard: ReplicaShard, first_number: int, last_number: int) -> Iterator[Rows]:
        elements = self.dataset(shard, first_number - 1, last_number)
        elements = elements.take((last_number - first_number + 1) * shard.local_replicas)
        for number, element in enumerate(read_ahead.without_autotuning(elements)):
            if int(element["count"]) == 0:
                continue
            step = first_number + number // shard.local_replicas
            replica = shard.first_replica + number % shard.local_replicas
            ids, _, _ = self.ids(tf.constant(step - 1, tf.int64), tf.constant(replica, tf.int64), shard.num_replicas)
            place = functools.partial(_place, ids.numpy())
            yield Rows(step=step, columns=arrays_of(*element["data"]), place=place)


def _place(ids: np.ndarray, column: str, at: tuple[int, ...]) -> str:
    """Returns the place of a value, as in "x[57, 4]": indices of the user's arrays."""
    return f"{column}[{', '.join(map(str, (ids[at[0]], *at[1:])))}]"


def shard_bounds(replica: tf.Tensor, total: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (low, count), int64 []: the rows of `replica` among `total` examples; low is always below total."""
    low, high = replica * total // num_replicas, (replica + 1) * total // num_replicas
    return low, high - low


def have_rows(element_spec: Any) -> list[bool]:
    """Returns which of the flat tensors of a batch have a row for each example.

    A tensor without rows is a scalar, or its first dimension is known although the batch size is not, such as a vector
    of classes.
    """
    flat = [spec for spec in tf.nest.flatten(element_spec) if spec is not None]
    ranked = [spec.shape.rank != 0 for spec in flat]
    unknown = [
        has and (spec.shape.rank is None or spec.shape[0] is None) for has, spec in zip(ranked, flat, strict=True)
    ]
    return unknown if any(unknown) else ranked


def numbers_of_rows(data: Any, divided: list[bool]) -> list[int | None]:
    """Returns the number of rows of each flat tensor of a batch; None: unknown; 0: it has none, as `have_rows` says."""
    flat = [one for one in tf.nest.flatten(data) if one is not None]
    return [one.shape[0] if has else 0 for one, has in zip(flat, divided, strict=True)]


def arrays_of(batch: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch x, (x,), (x, y) or (x, y, sample_weight) under names such as `x["age"]`."""
    found = {}
    for path, value in keras.tree.flatten_with_path(batch if isinstance(batch, tuple) else (batch,)):
        name = _PARTS[path[0]] if path[0] < len(_PARTS) else f"part {path[0]}"
        name += "".join(f"[{key!r}]" for key in path[1:])
        for number, part in enumerate(tf.nest.flatten(value, expand_composites=True)):
            found[name if number == 0 else f"{name} ({number})"] = np.asarray(part)
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Options for reading the data, from the arguments of `fit`, `evaluate` or `predict`."""

    batch_size: int | None = None
    # Steps per epoch; None: one pass over the data.
    steps: int | None = None
    shuffle: bool = False
    class_weight: Mapping[int, float] | None = None
    seed: int = 0


def steps_of_epoch(options: DataOptions, batches: int) -> int:
    """Returns the steps of an epoch over `batches` batches of data: as in Keras, an epoch ends where the data ends."""
    if options.steps is None or options.steps <= batches:
        return options.steps or batches
    warnings.warn(
        f"The data ends after {batches} batches, and so does each epoch, as in Keras. Received: {options.steps} as "
        "steps_per_epoch, validation_steps or steps. Call repeat() on a tf.data.Dataset to read it again in an epoch.",
        stacklevel=2,
    )
    return batches


def spec_of(batches: tf.data.Dataset, unpack: Callable[[Any], Any]) -> Any:
    """Returns the nested tf.TensorSpec of `unpack(batch)`; None for parts that are None."""
    in_tuple = isinstance(batches.element_spec, tuple)
    convert = tf.autograph.experimental.do_not_convert
    spec = batches.map(convert(lambda *given: unpack(given if in_tuple else given[0]))).element_spec
    return tf.nest.map_structure(lambda one: one if hasattr(one, "shape") else None, spec)


def unpack(batch: Any, options: DataOptions) -> tuple:
    """Returns (batch,): a step gets the batch as it is in the data, with class weights as sample weights."""
    if options.class_weight is None:
        return (batch,)
    parts = tuple(part for part in keras.utils.unpack_x_y_sample_weight(batch) if part is not None)
    if len(parts) < 2:
        raise ValueError("class_weight needs targets, but the data has none.")
    return (tf_dataset_adapter.make_class_weight_map_fn(options.class_weight)(*parts),)
