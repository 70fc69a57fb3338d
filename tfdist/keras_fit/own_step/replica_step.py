"""The step that a replica is tracing: its shard, and how it applies gradients."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching, user_code
from tfdist.keras_fit.whole_batch import metric_state, reductions
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
    # Set while a tape computes gradients, which includes those of tapes in a Jacobian or in a function's own gradient.
    in_backward: bool = False
    # Whether a Jacobian of variables was taken since the last apply.
    by_jacobian: bool = False
    # Variables, by id, with the graph of the branch or loop that assigns them.
    updated_in_branch: set[tuple[int, Any]] = dataclasses.field(default_factory=set)
    # Lines that assign a variable other than by an optimizer, by the variable's path.
    assigned: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    # Variables, by id, that are averaged over the replicas after the step.
    statistics: set[int] = dataclasses.field(default_factory=set)
    # Values of metrics' variables before the step, by id, which hold where a shard is empty.
    before: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    # Set while the step is traced only to see what it does: gradients of variables are then zeros.
    without_effect: bool = False
    # The graph of the step; branches, loops and functions inside it have graphs of their own.
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    # Set while an optimizer's own `apply` runs.
    applying: bool = False
    # Set while the function of a `tf.vectorized_map`, or of a Jacobian, is traced, in the graph of the step.
    mapping: bool = False

    @property
    def in_branch(self) -> bool:
        """True inside a tf.cond, a tf.while_loop, a tf.vectorized_map, a Jacobian or a tf.function of the step."""
        return self.mapping or tf.compat.v1.get_default_graph() is not self.graph

    def refuse_on_several(self, name: str) -> None:
        """Raises ValueError if several replicas run a step that calls `name`."""
        if self.rows.replicas > 1:
            raise ValueError(
                f"{name} does not work in a step on several replicas, in {user_code.current_line()}\nCompute the "
                "derivative by nested tf.GradientTapes, or run on one replica."
            )

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
                f"in {user_code.current_line()}\nAll replicas must apply together: apply in train_step itself, "
                "in Python loops if there are several, without tf.function, and choose values by tf.where instead of "
                "tf.cond."
            )
        with patching.set_in_block(self, applying=True):
            return self.apply(optimizer, original, gradients, variables)

    def add_up(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Sums over the replicas, as a loss of the whole batch and synchronized normalization do.

        Raises:
            RuntimeError: it is in a branch, a loop, a map, a Jacobian or a function of its own in the graph. TensorFlow
                refuses it there, or replicas wait for each other for ever. TensorFlow hides a ValueError in a Jacobian.
        """
        if self.in_branch and self.rows.replicas > 1:
            raise RuntimeError(
                "Replicas cannot communicate inside a tf.cond, a tf.while_loop, a tf.map_fn, a tf.vectorized_map, a "
                "Jacobian or a function decorated with tf.function(jit_compile=True), in "
                f"{user_code.current_line()}\nThat is where a loss or metric of the whole batch, one that is divided "
                "by its weights or mask, tfdist.all_gather, synchronized batch normalization and gradients that are "
                "averaged sum over all replicas: call them in train_step itself, in Python loops if there are several, "
                "and choose values by tf.where instead of tf.cond. Take the Jacobian of averaged gradients row by row, "
                "by a persistent tape."
            )
        return original(*args, **options)

    def complete_gradients(self, gradients: Any, sources: Any, unclear: bool, *, of_graph: bool = False) -> Any:
        """Returns `gradients` as on one device: those of the global batch.

        Gradients of variables, and of what is equal on all replicas, are averaged. Those of a replica's examples, as
        in a penalty, stay with it: they get the weight of its examples, by which the loss of the global batch contains
        its loss. In a branch or function replicas cannot communicate: `apply` averages the gradients.

        Args:
            gradients: what `tape.gradient` returned for the nested `sources`, with the upstream gradient of `upstream`.
            unclear: whether a target is neither a mean nor a sum over examples, nor has a value for each.
            of_graph: whether they are operations that a loss may contain without a tape: those of `tf.gradients`.

        Raises:
            ValueError: another tape records gradients in a branch or function; or the gradient of examples of a number
                that is neither a mean nor a sum over them.
        """
        if self.average is None or self.rows.replicas == 1:
            return gradients
        flat, given = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        shared = [
            place
            for place, one in enumerate(given)
            if isinstance(one, keras.Variable | tf.Variable)
            or not (tf.executing_eagerly() or reductions.is_of_examples(one, self.rows))
        ]
        for place in set(range(len(flat))) - set(shared):
            if flat[place] is not None:
                _check_clear(unclear)
                flat[place] = trainer.scale_gradients([flat[place]], self.rows.weight)[0]
        recorded = of_graph or bool(self.recording)
        averaged = self._average_outside_branches(*([of[place] for place in shared] for of in (flat, given)), recorded)
        for place, gradient in zip(shared, averaged, strict=True):
            flat[place] = gradient
        return tf.nest.pack_sequence_as(gradients, flat)

    def _average_outside_branches(self, gradients: list[Any], sources: list[Any], recorded: bool) -> list[Any]:
        if self.in_branch and recorded and any(one is not None for one in gradients):
            raise ValueError(
                "A gradient of variables is part of a loss, inside a tf.cond, a tf.while_loop or a function decorated "
                f"with tf.function, in {user_code.current_line()}\nReplicas cannot communicate there: compute it in "
                "train_step itself, in Python loops if there are several."
            )
        if self.in_branch or not sources:
            return gradients
        if recorded or not all(isinstance(one, keras.Variable | tf.Variable) for one in sources):
            found = self._average_for_tapes(gradients)
        else:
            found = self.average(gradients, sources)
        self.averaged |= {id(one) for one in sources}
        if not tf.executing_eagerly():
            parts = [part for one in found if one is not None for part in tf.nest.flatten(one, expand_composites=True)]
            self.rows.equal.update(part.op for part in parts)
        return found

    def _average_for_tapes(self, gradients: list[Any]) -> list[Any]:
        """Averages gradients that may be part of a loss: differentiable, in one collective per dtype."""
        found = [None if one is None else tf.convert_to_tensor(one) for one in gradients]
        for dtype in {one.dtype for one in found if one is not None}:
            places = [place for place, one in enumerate(found) if one is not None and one.dtype == dtype]
            parts = [found[place] for place in places]
            numbers = tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)
            total = trainer.sum_differentiable(numbers * tf.cast(self.rows.weight, dtype))
            split = tf.split(total, [tf.size(part) for part in parts])
            for place, part, values in zip(places, parts, split, strict=True):
                found[place] = tf.reshape(values, tf.shape(part))
        return found

    def pop_averaged(self, gradients: list[Any], variables: list[Any]) -> list[bool]:
        """Returns for each variable whether its gradient is averaged: since the last apply, and nothing was added."""
        names = [{id(one), id(checkpoint_format.tf_variable(one))} for one in variables]
        found = [bool(name & self.averaged) for name in names]
        self.averaged -= set().union(*names)
        self.by_jacobian = False
        return [done and not self._is_mean(one) for done, one in zip(found, gradients, strict=True)]

    def share_of_mean(self, value: Any) -> Any:
        """Returns what has the mean over the replicas that a value for a variable has on one device."""
        return reductions.share_value(value, self.rows, whole=True) if self._is_mean(value) else value

    def _is_mean(self, value: Any) -> bool:
        """Returns whether a value for a variable is made of means and sums over the examples of the replica."""
        if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not value.dtype.is_floating:
            return False
        terms = reductions.terms_of(value, self.rows, whole=True)
        kinds = {reductions.kind_of(term, self.rows, whole=True) for _, term in terms}
        return kinds <= {"mean", "sum", "equal"} and kinds != {"equal"}

    def upstream(self, target: tf.Tensor) -> tf.Tensor:
        """Returns the upstream gradient of a target of `tf.GradientTape.gradient`, in its shape.

        The tape sums the elements of a target, and gradients are averaged over replicas, with the weights of their
        examples. Where the sum over the global batch is meant, the gradient is divided by the weight first.
        """
        if not tf.executing_eagerly():
            return tf.ones_like(target) * tf.cast(reductions.share(target, self.rows), target.dtype)
        per_example = len(target.shape) > 0 and target.shape[0] == self.rows.count
        return tf.ones_like(target) / tf.cast(self.rows.weight if per_example else 1.0, target.dtype)

    def result_of(self, original: Callable[[], Any], metric: keras.Metric) -> Any:
        """Returns the result of a metric over the examples of all replicas, with which the step computes.

        In a branch, it is the result before the branch: replicas can only communicate outside of branches.

        Raises:
            ValueError: the branch has updated the metric.
        """
        if self.without_effect or self.rows.replicas == 1:
            return original()
        graph = tf.compat.v1.get_default_graph()
        while graph is not self.graph and not tf.executing_eagerly():
            if any((id(one), graph) in self.updated_in_branch for one in metric.variables):
                raise ValueError(
                    f"The result of the metric {metric.name!r} is computed in the tf.cond or tf.while_loop that "
                    f"updates it, in {user_code.current_line()}\nReplicas cannot sum it there: call result() outside."
                )
            graph = graph.outer_graph
        with (
            contextlib.nullcontext() if tf.executing_eagerly() else self.graph.as_default(),
            patching.set_in_block(self, mapping=False),
        ):
            sums = [(one, self._sum(one)) for one in metric.variables if not metric_state.is_whole(one)]
        with keras.StatelessScope(state_mapping=sums):
            return original()

    def _sum(self, variable: keras.Variable) -> tf.Tensor:
        value = tf.identity(variable.value)  # On the device of the replica: a collective needs it.
        if id(variable) in self.before:
            value = tf.where(self.rows.count > 0, value, self.before[id(variable)])
        total = trainer.sum_differentiable(value)
        if not tf.executing_eagerly():
            self.rows.equal.add(total.op)
        return total

    def assign(self, original: Callable[..., Any], variable: keras.Variable, value: Any) -> Any:
        """Assigns `value` as on one device, if it is made of means and sums over the examples; records the line.

        Not in the updates of an optimizer and of metrics, nor of the statistics of layers, which are averaged later.
        """
        if self.applying:
            return original(variable, value)
        if self.without_effect and self.in_branch:
            return value  # Keras would read a tensor of the branch's graph after it.
        self.assigned.setdefault(variable.path, set()).add(user_code.current_line())
        partial = getattr(variable.value, "synchronization", None) == tf.VariableSynchronization.ON_READ
        if self.in_branch:
            self.updated_in_branch.add((id(variable), tf.compat.v1.get_default_graph()))
        if self.average is None or self.rows.replicas == 1 or self.in_branch or partial or tf.executing_eagerly():
            return original(variable, value)
        if id(variable) in self.statistics:
            return original(variable, value)
        value = keras.ops.convert_to_tensor(value, dtype=variable.dtype)
        return original(variable, self.mean(self.share_of_mean(value)) if self._is_mean(value) else value)

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the mean over the replicas, weighted by their examples; differentiable."""
        total = trainer.sum_differentiable(value * tf.cast(self.rows.weight, value.dtype))
        self.rows.equal.add(total.op)
        return total


def zeros(source: Any) -> tf.Tensor | tf.IndexedSlices:
    """Returns zeros in place of a derivative, while a step is traced without effect; of a table, a row."""
    if isinstance(source, tf.Tensor):
        return tf.zeros_like(source)
    if _is_table(source):
        row = tf.zeros([1, *source.shape[1:]], source.dtype)
        return tf.IndexedSlices(row, tf.zeros([1], tf.int32), tf.constant(list(source.shape)))
    return tf.zeros(source.shape, source.dtype)


def _is_table(variable: Any) -> bool:
    """Returns whether the graph only looks up rows in a variable, which was made before it."""
    value = checkpoint_format.tf_variable(variable)
    if tf.executing_eagerly() or not isinstance(value, tf.Variable):
        return False
    handle = tf.compat.v1.get_default_graph().capture(getattr(value, "values", [value])[0].handle)
    waiting, found = [handle], set()
    while waiting:
        for op in waiting.pop().consumers():
            if op.type in ("ReadVariableOp", "Identity"):
                waiting += op.outputs
            else:
                found.add(op.type)
    return found in ({"GatherV2"}, {"ResourceGather"})


def _check_clear(unclear: bool) -> None:
    """Raises ValueError if the derivative of a number is `unclear`: it is neither a mean nor a sum over examples."""
    if unclear:
        raise ValueError(
            "The gradient of examples is taken of a number that is neither their mean nor their sum, in "
            f"{user_code.current_line()}\nIts value for the whole batch cannot be told from those of the replicas: "
            "compute it in a keras.losses.Loss, which sees the whole batch, or take the gradient of one value per "
            "example."
        )


def replica_of_draws() -> tf.Tensor:
    """Returns the replica whose random numbers are drawn: int32 [].

    Noise that is added to averaged gradients must be the same on all replicas: what is drawn between `tape.gradient` of
    variables and the optimizer's `apply`, and is not recorded by a tape.
    """
    step = current()
    if step is not None and (step.averaged or step.by_jacobian) and not step.recording:
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
    with patching.set_in_block(_tracing, step=step), rows_lib.current(step.rows):
        yield


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
