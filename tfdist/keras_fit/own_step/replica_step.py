"""The step that a replica is tracing: its shard, and how it applies gradients."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_fit.own_step import explain
from tfdist.training import api as trainer

# `sum_differentiable` supports these on all devices; others are sent as int32 or int64.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)

# apply(gradients, variables), of an optimizer.
Apply = Callable[[list[Any], list[Any] | None], Any]


@dataclasses.dataclass(kw_only=True)
class ReplicaStep:
    """A user's step on one replica, while it is traced."""

    # Rows of this replica in the global batch: low, low + 1, ..., of `total`; int64 [].
    low: tf.Tensor
    count: tf.Tensor
    total: tf.Tensor
    # The largest `total`: collectives in the steps of one execution must have equal shapes.
    most: int
    replicas: int
    # Receives an optimizer, its own `apply`, the gradients and the variables.
    apply: Callable[[keras.optimizers.Optimizer, Apply, list[Any], list[Any] | None], Any]
    # Lines that assign a variable other than by an optimizer, by the variable's path.
    assigned: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    # Set while the step is traced only to see what it does: gradients of variables are then zeros.
    without_effect: bool = False
    # The graph of the step; branches, loops and functions inside it have graphs of their own.
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    # Set while an optimizer's own `apply` runs.
    applying: bool = False

    @property
    def weight(self) -> tf.Tensor:
        """The fraction of the global batch's examples that this replica has: float32 []."""
        return tf.cast(self.count / self.total, tf.float32)

    @property
    def in_branch(self) -> bool:
        """True inside a tf.cond, a tf.while_loop or a tf.function of the step."""
        return tf.compat.v1.get_default_graph() is not self.graph

    def apply_gradients(
        self, optimizer: keras.optimizers.Optimizer, original: Apply, gradients: list[Any], variables: list[Any] | None
    ) -> Any:
        """Calls `apply`, except in the nested call of an optimizer that wraps another one.

        Raises:
            ValueError: the call is in a branch, a loop or a function of its own in the graph.
        """
        if self.applying:
            return original(gradients, variables)
        if self.in_branch:
            raise ValueError(
                "An optimizer is applied inside a tf.cond, a tf.while_loop or a function decorated with tf.function, "
                f"in {explain.user_line()}\nAll replicas must apply together: apply in train_step itself, in Python "
                "loops if there are several, without tf.function, and choose values by tf.where instead of tf.cond."
            )
        self.applying = True
        try:
            return self.apply(optimizer, original, gradients, variables)
        finally:
            self.applying = False

    def upstream(self, target: tf.Tensor) -> tf.Tensor:
        """Returns the upstream gradient of a target of `tf.GradientTape.gradient`, in its shape.

        The tape sums the elements of a target, and `apply` takes the mean over replicas. If the target has one value or
        row per example of this shard, the sum over the global batch is meant: its gradient is divided by the weight,
        with which `apply` multiplies. A gathered target has the rows of the global batch.
        """
        ones = tf.ones_like(target)
        if not target.shape.rank or target.shape[0] not in (None, self.most // self.replicas):
            return ones
        per_example = tf.equal(tf.shape(target, out_type=tf.int64)[0], self.count)
        return ones * tf.cast(tf.where(per_example, tf.math.divide_no_nan(1.0, self.weight), 1.0), target.dtype)

    def note_assignment(self, variable: keras.Variable) -> None:
        """Records the line that assigns `variable`."""
        if not self.applying:
            self.assigned.setdefault(variable.path, set()).add(explain.user_line())

    def gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the replicas' `tensor` (one row per example) in the order of the global batch."""
        static, row = tensor.shape[0], tensor.shape[1:]
        before, after = self.low, self.most - self.low - self.count
        padded = tf.pad(tensor[: self.count], [[before, after], *([[0, 0]] * row.rank)])
        whole = trainer.sum_differentiable(tf.ensure_shape(padded, [self.most, *row]))[: self.total]
        if tf.executing_eagerly():
            return whole
        # Shapes of shards are static only if all shards are equal.
        return tf.ensure_shape(whole, [static and static * self.replicas, *row])


# The replicas of a process are traced in threads of their own, in turn.
_tracing = threading.local()


def current() -> ReplicaStep | None:
    """Returns the step that this thread is tracing, or None."""
    return getattr(_tracing, "step", None)


@contextlib.contextmanager
def tracing(step: ReplicaStep) -> Iterator[None]:
    """Makes `step` the current one of this thread."""
    _tracing.step = step
    try:
        yield
    finally:
        _tracing.step = None


def call_in_step(method: Callable[..., Any], original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Returns `method(step, original, *args)` while a step is traced, and else `original(*args)`."""
    step = current()
    return original(*args, **keywords) if step is None else method(step, original, *args, **keywords)


def all_gather(tensor: Any) -> tf.Tensor:
    """Returns the rows of all replicas, for a loss over the global batch.

    Called in the `train_step` or `test_step` of a model that `tfdist.fit` or `tfdist.evaluate` runs; all replicas must
    call it. On one replica, and under Keras' own `fit` on one device, the tensor is returned as it is.

    Args:
        tensor: one row per example of this replica's shard: [examples, ...], of any dtype except string and complex.

    Returns:
        [examples of the global batch, ...], in the order of the global batch. Differentiable: if every replica computes
        the same loss from it, the gradients are those of this loss.

    Raises:
        ValueError: the tensor has no rows, or its rows are not the examples of the shard.
        RuntimeError: several replicas run a step that is not tfdist's.
    """
    tensor = tf.convert_to_tensor(tensor)
    step = current()
    if step is None:
        if trainer.num_replicas() > 1:
            raise RuntimeError(
                "tfdist.all_gather works in a train_step or test_step that tfdist.fit or tfdist.evaluate runs. Call "
                "tfdist.fit(cluster, model, ...) instead of model.fit(...)."
            )
        return tensor
    if tensor.shape.rank in (0, None):
        raise ValueError(f"tfdist.all_gather takes one row per example. Received: shape {tensor.shape}")
    if step.replicas == 1 or step.without_effect:
        return tensor
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    text = "tfdist.all_gather takes one row per example: gather the parts of concatenated tensors one by one. Rows:"
    check = tf.debugging.Assert(tf.equal(rows, tf.maximum(step.count, 1)), [text, rows, "examples:", step.count])
    with tf.control_dependencies([check]):
        wire = tensor.dtype if tensor.dtype in _DTYPES else tf.int64 if tensor.dtype.size > 4 else tf.int32
        return tf.cast(step.gather(tf.cast(tensor, wire)), tensor.dtype)
