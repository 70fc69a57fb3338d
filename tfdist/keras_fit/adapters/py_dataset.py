"""Data adapters for batches built by Python code: `keras.utils.PyDataset` and generators.

Every worker builds whole batches and takes its rows, unless the PyDataset can build single rows with these methods:

    num_rows(index) -> int                  # number of examples in the batch `index`
    read_rows(index, low, high) -> batch    # rows low to high - 1 of the batch that `__getitem__` returns

Each worker then builds only the rows of its replicas.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfdist.data import inspection, order
from tfdist.data.inspection import Rows
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, epoch_gate
from tfdist.keras_fit.adapters.base import BatchAdapter, DataOptions
from tfdist.keras_fit.adapters.epoch_gate import EpochGate

# Of the batches of a generator without a number of steps, which are kept in memory.
_MAX_BYTES = 4_000_000_000


def of_py_dataset(data: keras.utils.PyDataset, options: DataOptions) -> BatchAdapter:
    """Returns the adapter for a `keras.utils.PyDataset`; see `make_adapter.make_data_adapter`."""
    try:
        length = data.num_batches
    except NotImplementedError:
        length = None
    if length == 0:
        raise ValueError(f"The {type(data).__name__} has no batches.")
    if length is None and options.steps is None:
        raise ValueError(f"The {type(data).__name__} never ends: pass steps_per_epoch (or validation_steps, or steps).")
    samples = [_numpy_batch(data[index]) for index in range(min(2, length or 2))]
    spec = data_adapter_utils.get_tensor_spec(samples)
    steps = options.steps if length is None else base.steps_of_epoch(options, length)
    batches = _Reader(data, EpochGate(steps))
    if data.use_multiprocessing and batches.num_parallel_calls > 1:
        name = type(data).__name__
        messages.say_once(
            f"{name}(use_multiprocessing=True): its {data.workers} workers are threads, which share the object. If "
            f"{name}.__getitem__ sets attributes, give it workers=1."
        )

    def place(step: tf.Tensor) -> tf.Tensor:
        if length is None:
            return step
        epoch, index = step // length, step % length
        if not options.shuffle:
            return index
        return order.permute(index[tf.newaxis], epoch, seed=options.seed, num_examples=length)[0]

    def call(read: Callable[..., Any], step: tf.Tensor, *rows: tf.Tensor) -> tuple:
        flat = tf.numpy_function(read, [step, place(step), *rows], [one.dtype for one in tf.nest.flatten(spec)])
        flat = flat if isinstance(flat, list | tuple) else [flat]
        shaped = [tf.ensure_shape(one, like.shape) for one, like in zip(flat, tf.nest.flatten(spec), strict=True)]
        return base.unpack(tf.nest.pack_sequence_as(spec, shaped), options)

    def stream(start: int, stop: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(start, stop)
        load = tf.autograph.experimental.do_not_convert(lambda step: call(batches.read, step))
        return numbers.map(load, num_parallel_calls=batches.num_parallel_calls, deterministic=True)

    def shard_steps(shard: ReplicaShard, start: int, stop: int) -> tf.data.Dataset:
        def load(element: tf.Tensor) -> dict[str, Any]:
            step, replica = element // shard.local_replicas, shard.first_replica + element % shard.local_replicas
            total = tf.ensure_shape(tf.numpy_function(batches.num_rows, [step, place(step)], tf.int64), [])
            low, count = base.shard_bounds(replica, total, shard.num_replicas)
            data = call(batches.read_rows, step, low, low + tf.maximum(count, 1))
            return {"data": data, "count": count, "total": total}

        numbers = tf.data.Dataset.range(start * shard.local_replicas, stop * shard.local_replicas)
        load = tf.autograph.experimental.do_not_convert(load)
        return numbers.map(load, num_parallel_calls=batches.num_parallel_calls, deterministic=True)

    return BatchAdapter(
        stream=stream,
        steps=steps,
        gate=batches.gate,
        batch_size=len(keras.tree.flatten(samples[0])[0]),
        element_spec=stream(0, 1).element_spec,
        smallest_batch=1,
        sample=lambda: base.name_columns(_numpy_batch(samples[0])),
        resume_caveat=batches.resume_caveat(),
        sharded=shard_steps if hasattr(data, "num_rows") and hasattr(data, "read_rows") else None,
        stops=True,
        epoch_hooks=base.EpochHooks(data.on_epoch_begin, data.on_epoch_end),
        first_nonfinite=batches.watch.first if batches.epoch_hooks else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _NonfiniteBatches:
    """Looks at each batch when it is made, some steps before it is used: Python code may not make it twice."""

    # Step, counted from 1 -> a sentence about its first value that is not finite.
    found: dict[int, str] = dataclasses.field(default_factory=dict)

    def look(self, step: int, batch: tuple | dict, low: int = 0) -> None:
        """Searches a batch (x,), (x, y) or (x, y, sample_weight) of arrays.

        Args:
            step: counted from 1.
            batch: the rows of the step's global batch from row `low` on.
        """
        columns = base.name_columns(batch)
        if all(_is_probably_finite(values) for values in columns.values()):
            return
        first = inspection.first_nonfinite([Rows(step=step, columns=columns, place=base.place_in_batch(low))])
        if first is not None:
            self.found[step] = first[1]

    def first(self, steps: Iterable[int]) -> tuple[int, str] | None:
        """Returns the first of `steps` whose batch has such a value, and the sentence about it; None: none has."""
        return next(((step, self.found[step]) for step in steps if step in self.found), None)


class _Reader:
    """Reads batches of a PyDataset."""

    def __init__(self, data: keras.utils.PyDataset, gate: EpochGate):
        self._data, self.gate = data, gate
        kind, plain = type(data), keras.utils.PyDataset
        hooks = ("on_epoch_begin", "on_epoch_end")
        self.epoch_hooks = [name for name in hooks if getattr(kind, name) is not getattr(plain, name)]
        self.num_parallel_calls = 1 if self.epoch_hooks else max(1, data.workers)
        self.watch = _NonfiniteBatches()

    def resume_caveat(self) -> str | None:
        name = type(self._data).__name__
        does_the_same = "must do the same in every start and on every worker"
        return f"{name}.{self.epoch_hooks[-1]} {does_the_same}" if self.epoch_hooks else None

    def read(self, step: np.int64, index: np.int64) -> list[np.ndarray]:
        arrays = self._arrays(step, self._data[int(index)])
        self.gate.look(step, arrays)
        return arrays

    def _arrays(self, step: np.int64, batch: Any, low: np.int64 = 0) -> list[np.ndarray]:
        batch = _numpy_batch(batch)
        if self.epoch_hooks:
            self.watch.look(int(step) + 1, batch, int(low))
        return [np.asarray(part) for part in keras.tree.flatten(batch)]

    def num_rows(self, step: np.int64, index: np.int64) -> np.int64:
        return np.int64(self._data.num_rows(int(index)))

    def read_rows(self, step: np.int64, index: np.int64, low: np.int64, high: np.int64) -> list[np.ndarray]:
        arrays = self._arrays(step, self._data.read_rows(int(index), int(low), int(high)), low)
        if any(len(array) != high - low for array in arrays):
            name, sizes = type(self._data).__name__, sorted({len(array) for array in arrays})
            raise ValueError(
                f"{name}.read_rows({index}, {low}, {high}) must return {high - low} rows. Received: {sizes}"
            )
        return arrays


def _is_probably_finite(values: np.ndarray) -> bool:
    """Returns False if a value is not finite, or only the sum: it takes one pass and no memory."""
    if values.dtype.kind != "f":
        return values.dtype.kind != "V"  # bfloat16 is searched in any case.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))


def _numpy_batch(batch: Any) -> tuple | dict:
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


def of_generator(generator: Iterator, options: DataOptions) -> BatchAdapter:
    """Returns the adapter for an iterator over batches; see `make_adapter.make_data_adapter`."""
    steps = options.steps
    if steps is None:
        drawn = _draw_all(generator)
        steps, generator = len(drawn), iter(drawn)
    samples = [_numpy_batch(batch) for batch in itertools.islice(generator, 2)]
    if not samples:
        raise ValueError("The generator has no batches.")
    spec = data_adapter_utils.get_tensor_spec(samples)
    watch, gate = _NonfiniteBatches(), EpochGate(steps)
    drawn, rest, passes = itertools.count(), map(_numpy_batch, generator), itertools.count()
    source = itertools.chain(samples, rest)

    def read_and_watch() -> Iterator[Any]:
        for step in drawn:
            batch = next(source, None) if gate.wait(step) else None
            if batch is None:
                return
            watch.look(step + 1, batch)
            gate.look(step, keras.tree.flatten(batch))
            yield batch

    batches = read_and_watch()
    waiting = tf.data.Options()
    waiting.threading.private_threadpool_size = epoch_gate.THREADS

    def stream(start: int, stop: int) -> tf.data.Dataset:
        # Nothing is read after the last step: the next pass, or the script, goes on there.
        def wanted() -> Iterator[Any]:
            nonlocal source
            if next(passes) and not start:  # As in Keras, which keeps the batches that it has looked at.
                source = itertools.chain(samples, rest)
            return itertools.islice(batches, stop)

        dataset = tf.data.Dataset.from_generator(wanted, output_signature=spec)
        return dataset.map(lambda *parts: base.unpack(parts, options)).with_options(waiting).skip(start)

    def draw_to(steps: int, ended_early: bool) -> None:
        for _ in itertools.islice(source, max(0, steps - next(drawn))):
            pass

    return BatchAdapter(
        stream=stream,
        steps=steps,
        gate=gate,
        batch_size=len(keras.tree.flatten(samples[0])[0]),
        element_spec=stream(0, 1).element_spec,
        smallest_batch=1,
        sample=None,
        count_passes=draw_to,
        first_nonfinite=watch.first,
        resume_caveat="a generator must return the same batches in every start and on every worker; a resumed run "
        "reads and skips the batches of finished steps",
    )


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
