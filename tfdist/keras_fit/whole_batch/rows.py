"""A replica's rows of the global batch, and tensors with the rows of all replicas.

A loss or metric that compares examples, or divides by something of the batch, is right only on the whole batch. Every
replica computes it on the gathered rows, and the gradient goes back to its own rows.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import masking

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching
from tfdist.keras_fit.adapters.base import shard_bounds
from tfdist.training import api as trainer

# `sum_differentiable` supports these on all devices; others are sent as int32 or int64.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one replica in a global batch."""

    # low, low + 1, ..., of `total`; int64 []. An empty shard has one blank row, which does not count.
    low: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    # The largest `total`: a collective in the steps of one execution has one shape.
    most: int
    replicas: int
    # The examples of each shard if they are known when the step is traced: all shards are then equal.
    static: int | None = None
    # What was gathered in this trace of a step: (id(tensor), `each`) -> the tensor, and its rows of all replicas.
    gathered: dict[tuple[int, bool], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    # What loss objects returned in this trace.
    losses: list[Any] = dataclasses.field(default_factory=list)
    # Operations of this trace whose results are equal on all replicas, although they depend on the examples.
    equal: set[Any] = dataclasses.field(default_factory=set)
    # Operation -> whether its results differ between replicas; by whether numbers of examples count.
    dependent: dict[bool, dict[Any, bool]] = dataclasses.field(default_factory=dict)

    @property
    def weight(self) -> tf.Tensor:
        """The fraction of the global batch's examples that this replica has: float64 []."""
        return self.count / self.total

    @property
    def present(self) -> tf.Tensor:
        """0.0 if the shard is empty, else 1.0: float32 []."""
        return tf.cast(self.count > 0, tf.float32)

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """Sums `value` (any shape) over all replicas; differentiable."""
        return trainer.sum_differentiable(value)

    def gathered_bytes(self) -> int:
        """Returns the bytes of what `gather_all` gathered so far, without tensors of unknown shapes."""
        tensors = [whole for _, whole in self.gathered.values()]
        rows = [(one.shape[1:].num_elements() or 0) * one.dtype.size for one in tensors if one.shape.rank]
        return self.most * sum(rows)

    def gather(self, tensor: tf.Tensor, times: int = 1) -> tf.Tensor:
        """Concatenates the replicas' `tensor` in the order of the global batch; `times` rows per example."""
        static, row = tensor.shape[0], tensor.shape[1:]
        low, count, total, most = (times * one for one in (self.low, self.count, self.total, self.most))
        wire = tensor.dtype if tensor.dtype in _DTYPES else tf.int64 if tensor.dtype.size > 4 else tf.int32
        rows = tf.cast(tensor[:count], wire)
        if not row.is_fully_defined() and self.replicas > 1 and not tf.executing_eagerly():
            whole = self._gather_unknown_shape(rows, low, total)
        else:
            text = "A loss or metric of the whole batch needs the largest batch first. Rows of this batch:"
            check = tf.debugging.Assert(total <= most, [text, total, "of the first one:", most])
            with tf.control_dependencies([] if check is None else [check]):
                padded = tf.pad(rows, [[low, most - low - count], *([[0, 0]] * row.rank)])
            padded.set_shape([most, *row])
            whole = trainer.sum_differentiable(padded)[:total]
        whole = tf.cast(whole, tensor.dtype)
        if tf.executing_eagerly():
            return whole
        # Shapes of shards are static only if all shards are equal.
        whole.set_shape([static and static * self.replicas, *row])
        self.equal.add(whole.op)
        return whole

    def _gather_unknown_shape(self, rows: tf.Tensor, low: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        """Gathers rows of a shape that is known only when the step runs: as numbers with their places in the batch."""
        shape = tf.shape(rows, tf.int64)[1:]
        size = tf.reduce_prod(shape)
        own_size = tf.one_hot(replicas_lib.replica_id(), self.replicas, size, tf.zeros_like(size))
        sizes = trainer.sum_differentiable(own_size)
        text = "A loss or metric of the whole batch needs rows of one shape on all replicas. Numbers in a row:"
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(tf.equal(sizes, size)), [text, sizes])]):
            places = low * size + tf.range(tf.size(rows, tf.int64))
        numbers = tf.IndexedSlices(tf.reshape(rows, [-1]), places, (total * size)[None])
        (numbers,) = trainer.gather_rows([numbers], _sums, lambda values: values.dtype)
        flat = tf.scatter_nd(numbers.indices[:, None], numbers.values, (total * size)[None])
        return tf.reshape(flat, tf.concat([total[None], shape], axis=0))

    def gather_all(self, values: Any, *, each: bool = False) -> Any:
        """Returns nested `values` with the rows of all replicas, for a function that every replica computes on them.

        The gradient of a replica's rows is divided by its weight: the step takes the mean of the replicas' gradients
        with these weights. So the sum of a weight of the function itself is right, too.

        Args:
            values: tensors [examples of the shard, ...] or None. A Keras mask on them is gathered and set again. What
                has no rows is returned as the mean over replicas.
            each: whether the function has a value for each row, of which every replica uses its own.
        """
        if self.replicas == 1:
            return values
        return tf.nest.map_structure(lambda value: self._gather_one(value, each), values)

    def take_rows(self, values: Any) -> tf.Tensor:
        """Returns this replica's rows of `values`, which has one or more for each example of the global batch."""
        values = tf.convert_to_tensor(values)
        if self.replicas == 1 or not values.shape.rank:
            return values
        times = tf.shape(values, out_type=tf.int64)[0] // self.total
        rows = values[times * self.low : times * (self.low + self.count)]
        blank = times * tf.cast(self.count == 0, tf.int64)
        return tf.pad(rows, [[0, blank], *([[0, 0]] * (values.shape.rank - 1))])

    def _gather_one(self, value: Any, each: bool) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(
                "A loss or metric of the whole batch cannot gather ragged or sparse tensors: make them dense in the "
                "data, or declare that each example counts by itself, by tfdist.per_example(loss)."
            )
        if (id(value), each) in self.gathered:
            return self.gathered[id(value), each][1]
        mask, tensor = mask_of(value), keras.ops.convert_to_tensor(value)
        if tensor.shape.rank == 0:
            if not tensor.dtype.is_floating:
                return value  # Such as a class or an index, which is equal on all replicas.
            result = self._weighted_sum(tensor)
        else:
            result = self._exact(tensor, each)
        with_mask(result, self._gather_one(mask, each))
        self.gathered[id(value), each] = (value, result)  # The id is used as long as the value lives.
        return result

    def _weighted_sum(self, tensor: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def mean(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return trainer.sum_differentiable(value * tf.cast(self.weight, value.dtype)), lambda upstream: upstream

        return mean(tensor)

    def _exact(self, tensor: tf.Tensor, each: bool) -> tf.Tensor:
        # Twice the examples, such as real and generated ones: only if shapes are known.
        shard = self.most // self.replicas
        times = tensor.shape[0] // shard if tensor.shape[0] and tensor.shape[0] % shard == 0 else 1
        rows = tf.shape(tensor, out_type=tf.int64)[0]
        text = "A loss or metric of the whole batch takes one row per example. Rows:"
        expected = times * tf.maximum(self.count, 1)
        check = tf.debugging.Assert(tf.equal(rows, expected), [text, rows, "examples:", self.count])
        with tf.control_dependencies([check]):
            tensor = tf.identity(tensor)
        if each:
            return self.gather(tensor, times)

        @tf.custom_gradient
        def whole(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def backward(upstream: tf.Tensor) -> tf.Tensor:
                low, count = times * self.low, times * self.count
                part = tf.math.divide_no_nan(upstream[low : low + count], tf.cast(self.weight, upstream.dtype))
                blank = times * tf.cast(self.count == 0, tf.int64)
                return tf.reshape(tf.pad(part, [[0, blank], *([[0, 0]] * (own.shape.rank - 1))]), tf.shape(own))

            return self.gather(own, times), backward

        return whole(tensor)


# The replicas of a process are traced in threads of their own, in turn.
_now = threading.local()


def current(rows: Rows | None) -> contextlib.AbstractContextManager[None]:
    """Makes `rows` those of the step that this thread traces; None: examples of no step."""
    return patching.set_in_block(_now, rows=rows)


def rows_now() -> Rows | None:
    """Returns the rows of the replica whose step this thread traces; None outside of a step."""
    return getattr(_now, "rows", None)


def draw_alike() -> contextlib.AbstractContextManager[None]:
    """In this block, in which each replica computes something of the whole batch, all draw the same numbers."""
    return trainer.as_replica(tf.constant(0))


def _sums(parts: list[tf.Tensor]) -> list[tf.Tensor]:
    return [trainer.sum_differentiable(part) for part in parts]


def mask_of(value: Any) -> tf.Tensor | None:
    """Returns Keras' mask on a tensor, bool [examples, ...]; None without one."""
    return masking.get_keras_mask(value)


def with_mask(value: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Sets Keras' mask on a tensor, unless it is None; returns the tensor."""
    if mask is not None:
        masking.set_keras_mask(value, mask)
    return value


def rows_of(element: dict[str, Any], most: int) -> Rows:
    """Returns the rows of the replica that runs a step.

    Args:
        element: "count" and "total", int64 []: the examples of its shard and of the global batch.
        most: the examples of the largest global batch.
    """
    replicas = trainer.num_replicas()
    low, _ = shard_bounds(tf.cast(replicas_lib.replica_id(), tf.int64), element["total"], replicas)
    shapes = {one.shape[0] for one in tf.nest.flatten(element["data"]) if one is not None and one.shape.rank}
    static = shapes.pop() if len(shapes) == 1 else None
    return Rows(low=low, count=element["count"], total=element["total"], most=most, replicas=replicas, static=static)
