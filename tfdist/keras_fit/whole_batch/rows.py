"""A replica's rows of the global batch, and tensors with the rows of all replicas."""

import dataclasses
import fractions
from typing import Any

import tensorflow as tf
from keras.src.backend.common import masking

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.keras_fit.adapters.base import shard_bounds
from tfdist.training import api as trainer

# A replica's shard of a batch: "data" is a tuple with what a step gets; "count" and "total", int64 [], are the examples
# of the shard and of the global batch.
Element = dict[str, Any]
# `sum_differentiable` supports these on all devices; others are sent as int32 or int64.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one replica in a global batch."""

    # `count` rows from the row `low` on, of the `total` rows; int64 []. An empty shard has count 0, and one blank row.
    low: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    # The largest `total`: a collective must have one shape in all steps of an execution.
    most: int
    replicas: int
    # The examples of each shard if they are known when the step is traced: all shards are then equal.
    static: int | None = None

    @property
    def weight(self) -> tf.Tensor:
        """The fraction of the global batch's examples that this replica has: float64 []."""
        return self.count / self.total

    @property
    def present(self) -> tf.Tensor:
        """0.0 if the shard is empty, else 1.0: float32 []."""
        return tf.cast(self.count > 0, tf.float32)

    def scaled(self, per_example: fractions.Fraction | int) -> "Rows":
        """Returns the rows of a tensor that has `per_example` rows for each example."""
        if per_example == 1:
            return self
        up, down = per_example.as_integer_ratio()
        low, count, total = (one * up // down for one in (self.low, self.count, self.total))
        static = self.static and self.static * up // down
        return dataclasses.replace(self, low=low, count=count, total=total, most=self.most * up // down, static=static)

    def take(self, whole: tf.Tensor) -> tf.Tensor:
        """Returns this replica's rows of a tensor of the global batch; one blank row if it has none."""
        blank = tf.cast(self.count == 0, tf.int64)
        own = tf.pad(whole[self.low : self.low + self.count], [[0, blank], *([[0, 0]] * (whole.shape.rank - 1))])
        own.set_shape([self.static, *whole.shape[1:]])
        return own

    def pad_to_most(self, whole: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the global batch with as many rows as the largest batch has; the others are 0."""
        padded = tf.pad(whole, [[0, self.most - self.total], *([[0, 0]] * (whole.shape.rank - 1))])
        padded.set_shape([self.most, *whole.shape[1:]])
        return padded

    def gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the replicas' `tensor` in the order of the global batch."""
        row, low, count, total, most = tensor.shape[1:], self.low, self.count, self.total, self.most
        wire = tensor.dtype if tensor.dtype in _DTYPES else tf.int64 if tensor.dtype.size > 4 else tf.int32
        rows = tf.cast(tensor[:count], wire)
        if not row.is_fully_defined() and self.replicas > 1:
            whole = self._gather_unknown_shape(rows, low, total)
        else:
            text = f"A step needs the largest batch first. The first one has {most} examples, and this one:"
            with tf.control_dependencies([tf.debugging.Assert(total <= most, [text, total])]):
                padded = tf.pad(rows, [[low, most - low - count], *([[0, 0]] * row.rank)])
            padded.set_shape([most, *row])
            whole = trainer.sum_differentiable(padded)[:total]
        whole = tf.cast(whole, tensor.dtype)
        whole.set_shape([None, *row])
        return whole

    def _gather_unknown_shape(self, rows: tf.Tensor, low: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        """Gathers rows of a shape that is known only when the step runs: as numbers with their places in the batch."""
        shape = tf.shape(rows, tf.int64)[1:]
        size = tf.reduce_prod(shape)
        own_size = tf.one_hot(replicas_lib.replica_id(), self.replicas, size, tf.zeros_like(size))
        sizes = trainer.sum_differentiable(own_size)
        text = "A tensor of the whole batch needs rows of one shape on all replicas. Values per row:"
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(tf.equal(sizes, size)), [text, sizes])]):
            places = low * size + tf.range(tf.size(rows, tf.int64))
        numbers = tf.IndexedSlices(tf.reshape(rows, [-1]), places, (total * size)[None])
        (numbers,) = trainer.gather_rows(
            [numbers],
            add=lambda parts: [trainer.sum_differentiable(one) for one in parts],
            wire_type=lambda values: values.dtype,
        )
        flat = tf.scatter_nd(numbers.indices[:, None], numbers.values, (total * size)[None])
        return tf.reshape(flat, tf.concat([total[None], shape], axis=0))


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
        element: see `Element`.
        most: the examples of the largest global batch.
    """
    replicas = trainer.num_replicas()
    low, _ = shard_bounds(tf.cast(replicas_lib.replica_id(), tf.int64), element["total"], replicas)
    shapes = {one.shape[0] for one in tf.nest.flatten(element["data"]) if one is not None and one.shape.rank}
    static = shapes.pop() if len(shapes) == 1 else None
    return Rows(low=low, count=element["count"], total=element["total"], most=most, replicas=replicas, static=static)
