"""The step that a replica is tracing: its shard, and how it applies gradients."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.keras_fit.own_step import explain
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.rows import Rows
from tfdist.training import api as trainer

Average = Callable[[list[Any], list[Any]], list[Any]]
# apply(gradients, variables), of an optimizer.
Apply = Callable[[list[Any], list[Any] | None], Any]


@dataclasses.dataclass(kw_only=True)
class ReplicaStep:
    """A user's step on one replica, while it is traced."""

    rows: Rows
    # Receives an optimizer, its own `apply`, the gradients and the variables.
    apply: Callable[[keras.optimizers.Optimizer, Apply, list[Any], list[Any] | None], Any]
    # average(gradients, variables) -> their mean over replicas; None: an evaluation, or without effect.
    average: Average | None = None
    # The variables, by id, whose gradients were averaged and not yet applied.
    averaged: set[int] = dataclasses.field(default_factory=set)
    # The gradient tapes that record now.
    recording: list[Any] = dataclasses.field(default_factory=list)
    # Lines that assign a variable other than by an optimizer, by the variable's path.
    assigned: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    # Set while the step is traced only to see what it does: gradients of variables are then zeros.
    without_effect: bool = False
    # The graph of the step; branches, loops and functions inside it have graphs of their own.
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    # Set while an optimizer's own `apply` runs.
    applying: bool = False

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

    def average_gradients(self, tape: Any, gradients: Any, sources: Any) -> Any:
        """Returns `gradients`, those of variables averaged over the replicas: what the step sees on one device.

        Gradients of inputs stay those of the replica. So do gradients that another tape records, which are part of a
        loss, and those in a branch or function, where replicas cannot communicate: `apply` averages them.

        Args:
            gradients: what `tape.gradient` returned for the nested `sources`.
        """
        others = any(one is not tape for one in self.recording)
        if self.average is None or self.rows.replicas == 1 or others or self.in_branch:
            return gradients
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        places = [place for place, one in enumerate(variables) if isinstance(one, keras.Variable | tf.Variable)]
        averaged = self.average([flat[place] for place in places], [variables[place] for place in places])
        for place, gradient in zip(places, averaged, strict=True):
            flat[place] = gradient
            self.averaged.add(id(variables[place]))
        return tf.nest.pack_sequence_as(gradients, flat)

    def take_averaged(self, variables: list[Any]) -> list[bool]:
        """Returns for each variable whether its gradient was averaged since the last apply."""
        found = [id(variable) in self.averaged for variable in variables]
        self.averaged -= {id(variable) for variable in variables}
        return found

    def upstream(self, target: tf.Tensor) -> tf.Tensor:
        """Returns the upstream gradient of a target of `tf.GradientTape.gradient`, in its shape.

        The tape sums the elements of a target, and gradients are averaged over replicas. If the target has one value or
        row per example of this shard, the sum over the global batch is meant: its gradient is divided by the weight,
        with which the mean multiplies. A gathered target has the rows of the global batch.
        """
        ones = tf.ones_like(target)
        if not target.shape.rank or target.shape[0] not in (None, self.rows.most // self.rows.replicas):
            return ones
        per_example = tf.equal(tf.shape(target, out_type=tf.int64)[0], self.rows.count)
        return ones * tf.cast(tf.where(per_example, tf.math.divide_no_nan(1.0, self.rows.weight), 1.0), target.dtype)

    def note_assignment(self, variable: keras.Variable) -> None:
        """Records the line that assigns `variable`."""
        if not self.applying:
            self.assigned.setdefault(variable.path, set()).add(explain.user_line())


def replica_of_draws() -> tf.Tensor:
    """Returns the replica whose random numbers are drawn: int32 [].

    Noise that is added to averaged gradients must be the same on all replicas: what is drawn between `tape.gradient` of
    variables and the optimizer's `apply`, and is not recorded by a tape.
    """
    step = current()
    if step is not None and step.averaged and not step.recording:
        return tf.constant(0)
    return replicas_lib.replica_id()


# The replicas of a process are traced in threads of their own, in turn.
_tracing = threading.local()


def current() -> ReplicaStep | None:
    """Returns the step that this thread is tracing, or None; None too in a loss or metric of the whole batch."""
    step = getattr(_tracing, "step", None)
    return step if step is not None and rows_lib.rows_now() is step.rows else None


@contextlib.contextmanager
def tracing(step: ReplicaStep) -> Iterator[None]:
    """Makes `step` the current one of this thread."""
    _tracing.step = step
    try:
        with rows_lib.current(step.rows):
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
    if step.rows.replicas == 1 or step.without_effect:
        return tensor
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    text = "tfdist.all_gather takes one row per example: gather the parts of concatenated tensors one by one. Rows:"
    check = tf.debugging.Assert(
        tf.equal(rows, tf.maximum(step.rows.count, 1)), [text, rows, "examples:", step.rows.count]
    )
    with tf.control_dependencies([check]):
        return step.rows.gather(tensor)
