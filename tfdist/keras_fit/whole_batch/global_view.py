"""The global view: in a user's step each replica holds whole tensors of the global batch, equal on all replicas.

A call of a layer from the user's code runs on this replica's rows, and its output is gathered: `GlobalView.call`. In
the backward pass, the gather of an output sums the gradients of all replicas, and passes on this replica's rows of the
sum. The slice of an input gathers the gradients of all rows, and divides them by the number of replicas. A tape's
gradient of variables is the mean over the replicas. So every number that the user's code computes is the same as on one
device.

Only what the user's code reads is gathered: a trace without effect finds these tensors, and fills in the `Plan` of the
step.
"""

import contextlib
import dataclasses
import fractions
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching, text, user_code
from tfdist.keras_fit import messages
from tfdist.keras_fit.whole_batch import attributes
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.rows import Rows
from tfdist.training import api as trainer

# average(gradients, variables) -> their mean over replicas.
Average = Callable[[list[Any], list[Any]], list[Any]]

_VARIABLE = keras.Variable | tf.Variable
_COMPOSITE = tf.RaggedTensor | tf.SparseTensor
# If a step gathers at least this many bytes, a log line says so.
_MIN_LOGGED_BYTES = 1_000_000
# The same for the work (see `_work`) that each replica does for the whole batch, if it is at least a tenth of all work.
_MIN_LOGGED_WORK = 10_000_000
# Operations that look up rows of a table, and those with graphs of their own, which may do so.
_LOOKUPS = (
    *("GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd", "PartitionedCall", "StatefulPartitionedCall"),
    *("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"),
)
# Operations that look at the shape of a tensor, and not at its values.
_OF_SHAPE = ("Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike")


@dataclasses.dataclass(slots=True)
class Call:
    """A call of a layer, loss or metric from a user's step: which of its arguments and outputs have rows."""

    owner: str
    # Whether each replica computes it from its own rows.
    by_rows: bool
    # For each flat argument and output its number of rows for each example; 0: it has none. None: an output whose
    # number of rows is unknown in the trace; it is taken as one for each example.
    arguments: list[fractions.Fraction | int]
    outputs: list[fractions.Fraction | int | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True)
class Plan:
    """What a user's step does with the tensors of the batch: filled in by a trace without effect."""

    # The number of examples in the batch of the trace, and in the largest batch of a run.
    batch: int
    examples: int
    # Whether each batch has the same number of examples.
    is_static: bool = False
    # The rows per example of each tensor of the batch: 1, unless the tensors have different numbers of rows; 0: none.
    data: list[fractions.Fraction] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    # Indices of the whole tensors that the step reads. Whole tensors are counted in the order in which they are made.
    read: set[int] = dataclasses.field(default_factory=set)
    # Indices of those that are sources of a gradient: layers slice their rows from the whole tensor.
    sources: set[int] = dataclasses.field(default_factory=set)
    # Layers, by id, that each replica calls on whole tensors: those that update metrics and, with --whole_calls, those
    # that mix the rows of a batch.
    whole_layers: frozenset[int] = frozenset()
    # Layers that update metrics, found by this trace: the next one calls them on whole tensors.
    updating: list[keras.Layer] = dataclasses.field(default_factory=list)
    # Metrics, by id, whose results the step reads, or which it resets.
    read_metrics: set[int] = dataclasses.field(default_factory=set)
    # Id of a metric -> indices of the whole tensors that update it.
    updates: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    # The lines with conditions whose branches update variables.
    updating_branches: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(slots=True)
class _Whole:
    """A tensor of the global batch, and this replica's rows of it."""

    tensor: Any
    rows: Any
    number: int
    # Rows per example; 0: `tensor` is a scalar, and `rows` is this replica's part of the sum.
    per_example: fractions.Fraction | int


@dataclasses.dataclass(kw_only=True)
class GlobalView:
    """A user's step on one replica, while it is traced."""

    rows: Rows
    plan: Plan
    # Whether this trace has no effect, and fills in the plan.
    discovers: bool = False
    # Averages gradients over the replicas. None: by a differentiable mean, as for a loss that contains gradients.
    average: Average | None = None
    # The user's objects whose attributes each replica of this process has for itself.
    objects: list[Any] = dataclasses.field(default_factory=list)
    # The gradient tapes that record now.
    recording: list[Any] = dataclasses.field(default_factory=list)
    # Set while a layer runs, or a loss or metric on this replica's rows, or while a tape computes gradients.
    in_layer: bool = False
    # The layer that runs on this replica's rows.
    on_rows: keras.Layer | None = None
    # Set while the function of a `tf.vectorized_map` is traced, in the graph of the step.
    in_map: bool = False
    # Set while the loss of this replica's rows is reduced to its part of the whole loss.
    reduces: bool = False
    # Set while the losses of a model are summed: each is this replica's part.
    in_parts: bool = False
    # Whether XLA compiles each call of a layer; whether it does so now; the losses that the layer adds meanwhile.
    xla: bool = False
    compiles: bool = False
    losses: list[Any] = dataclasses.field(default_factory=list)
    # The bytes of each gather, and the line of the user's code.
    gathered: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    # What this replica adds to the variables of metrics.
    added: list[tuple[keras.Variable, tf.Tensor]] = dataclasses.field(default_factory=list)
    # The graph of the step; branches, loops and functions in it have graphs of their own.
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    num_calls: int = 0
    # The graph of the branch that is traced without effect, and whether it updates variables.
    branch: Any = None
    branch_updates: bool = False
    # The number of operations before the last gradient.
    num_forward: int = 0
    # The operations of layers that run on this replica's rows: [first, last) in the order of the graph.
    in_layers: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    # The tensors of the global batch, by id; in the order in which they are made.
    wholes: dict[int, _Whole] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_batch(
        cls, batch: int, replicas: int, sizes: Sequence[int | None], whole_layers: Iterable[keras.Layer] = ()
    ) -> "GlobalView":
        """Returns the view of a trace without effect, of all rows of a batch.

        Args:
            sizes: the rows of each of its flat tensors; None: unknown; 0: it has none.
        """
        parts = [fractions.Fraction(0) if one == 0 else fractions.Fraction(one or batch, batch) for one in sizes]
        whole = frozenset(id(one) for one in whole_layers)
        size = tf.constant(batch, tf.int64)
        rows = Rows(low=size - size, count=size, total=size, most=batch, replicas=replicas)
        return cls(rows=rows, plan=Plan(batch=batch, examples=batch, data=parts, whole_layers=whole), discovers=True)

    @property
    def in_inner_graph(self) -> bool:
        """True in a tf.cond, a tf.while_loop, a tf.vectorized_map or a function, where replicas cannot communicate."""
        return self.in_map or tf.compat.v1.get_default_graph() is not self.graph

    def call(self, original: Callable[..., Any], layer: keras.Layer, *args: Any, **keywords: Any) -> Any:
        """Calls a layer on this replica's rows of its arguments; returns its outputs for the global batch.

        In a branch, loop, map or inner function, if no argument has rows, or if the layer is in `plan.whole_layers`,
        each replica calls it on whole tensors, with the same random numbers on all. Calls from another layer are
        unchanged.
        """
        if self.in_layer:
            return original(layer, *args, **keywords)
        if self.in_inner_graph:
            line = user_code.current_line(tf.no_op().traceback)  # Also in what AutoGraph has converted.
            self.log(
                f"{type(layer).__name__} {layer.name!r} is called in a branch, a loop or a map, where replicas cannot "
                f"communicate, in {line}: each of the {self.rows.replicas} replicas computes it for the whole batch."
            )
            return self._call_whole(original, layer, *args, **keywords)
        # Tensors in attributes are arguments and outputs, too.
        held = attributes.tensors_of(layer, self.graph)
        given = args, keywords, [value for *_, value in held]
        flat = tf.nest.flatten(given)
        decided = self.next_call(layer, flat)
        decided.by_rows &= any(decided.arguments) and id(layer) not in self.plan.whole_layers
        if not decided.by_rows:
            return self._call_whole(original, layer, *args, **keywords)
        args, keywords, rows = tf.nest.pack_sequence_as(given, self.rows_of_arguments(flat, decided))
        attributes.assign(held, rows)
        before = [tf.nest.flatten(one) for one in rows]  # The call may change lists and dicts in `rows`.
        with patching.set_in_block(self, in_layer=True, on_rows=layer):
            run = self._by_xla if self.xla and not self.discovers else lambda call, *given: call(*given)
            first = self.num_operations()
            outputs = run(lambda args, keywords: original(layer, *args, **keywords), args, keywords)
            self.in_layers.append((first, self.num_operations()))
        known = {id(one) for flat in before for one in flat}
        kept = attributes.tensors_of(layer, self.graph)
        kept = [place for place in kept if not known.issuperset(map(id, tf.nest.flatten(place[-1])))]
        attributes.replace(held, rows, before, given[-1])
        made = outputs, [value for *_, value in kept]
        flat = tf.nest.flatten(made)
        if self.discovers:
            decided.outputs = [None if _has_unknown_rows(one) else self.rows_per_example(one) for one in flat]
        pairs = zip(flat, decided.outputs, strict=True)
        outputs, values = tf.nest.pack_sequence_as(made, [self._output(layer, *pair) for pair in pairs])
        attributes.assign(kept, values)
        return outputs

    def log(self, text: str) -> None:
        """Logs how a step on several replicas differs from one on one device; in a trace without effect only."""
        if self.discovers and self.rows.replicas > 1:
            messages.log_once(text)

    def _by_xla(self, call: Callable[..., Any], *given: Any) -> Any:
        """Calls a layer, compiled by XLA with its gradients.

        Masks, logits, added losses and tensors in attributes are outputs of the compiled function, too.
        """
        places: list[Any] = []
        kept: list[tuple[Any, str, Any]] = []
        inner: list[Any] = []

        @tf.function(jit_compile=True, autograph=False)
        def compiled(tensors: list[Any]) -> tuple[list[Any], dict[int, Any], dict[int, Any], list[Any]]:
            found = iter(tensors)
            outputs = call(*tf.nest.pack_sequence_as(given, [next(found) if _is_tensor(one) else one for one in flat]))
            kept[:] = attributes.tensors_of(self.on_rows, tf.compat.v1.get_default_graph())
            inner[:] = outputs, [value for *_, value in kept]
            made = [*enumerate(tf.nest.flatten(inner))]
            masks = {place: rows_lib.mask_of(one) for place, one in made if isinstance(one, tf.Tensor)}
            masks = {place: mask for place, mask in masks.items() if mask is not None}
            logits = {place: one._keras_logits for place, one in made if hasattr(one, "_keras_logits")}
            places[:] = [place for place, _ in self.losses]
            return [one for _, one in made if _is_tensor(one)], masks, logits, [loss for _, loss in self.losses]

        flat = tf.nest.flatten(given)
        with patching.set_in_block(self, losses=[], compiles=True):
            results, masks, logits, losses = compiled([one for one in flat if _is_tensor(one)])
        for (layer, index), loss in zip(places, losses, strict=True):
            attributes.added_losses(layer)[index] = self._whole_loss(loss)
        found = iter(results)
        made = [next(found) if _is_tensor(one) else one for one in tf.nest.flatten(inner)]
        for place, one in enumerate(made):
            rows_lib.with_mask(one, masks.get(place))
            if place in logits:
                one._keras_logits = logits[place]
        outputs, values = tf.nest.pack_sequence_as(inner, made)
        attributes.assign(kept, values)
        return outputs

    def _call_whole(self, original: Callable[..., Any], layer: keras.Layer, *args: Any, **keywords: Any) -> Any:
        alone = trainer.reduce_context(lambda value: value), trainer.shard_present(None)
        with patching.set_in_block(self, in_layer=True), trainer.as_replica(tf.constant(0)), alone[0], alone[1]:
            return original(layer, *args, **keywords)

    def rows_of_arguments(self, flat: list[Any], call: Call) -> list[Any]:
        """Returns the flat arguments of a call, with this replica's rows of those that have rows."""
        pairs = zip(flat, call.arguments, strict=True)
        return [self.own_rows(one, per_example) if per_example else one for one, per_example in pairs]

    def next_call(self, owner: Any, flat: list[Any], by_rows: bool = True) -> Call:
        """Returns what is decided on the next call of a layer, loss or metric, with these flat arguments.

        Args:
            by_rows: whether each replica can compute it from its own rows; not used when the step is traced again.

        Raises:
            ValueError: the step called another one when it was traced before.
        """
        number, name = self.num_calls, f"{type(owner).__name__} {owner.name!r}"
        self.num_calls += 1
        if self.discovers:
            # A tensor that the step made, such as by tf.boolean_mask, may have any number of rows: it is used whole.
            by_rows &= not any(_has_unknown_rows(one) and id(one) not in self.wholes for one in flat)
            self.plan.calls.append(Call(name, by_rows, [self.rows_per_example(one) for one in flat]))
            return self.plan.calls[-1]
        call = self.plan.calls[number] if number < len(self.plan.calls) else Call("none", False, [])
        if (call.owner, len(call.arguments)) != (name, len(flat)):
            raise ValueError(
                f"The step calls other layers when it is traced again: {name}, and {call.owner} before, in "
                f"{user_code.current_line()}\nIts Python code must do the same each time: choose by tf.where, or by "
                "an argument of the constructor."
            )
        return call

    def has_rows(self, value: Any) -> bool:
        """Returns whether this replica has its rows of a tensor without cutting them out of it."""
        known = self.wholes.get(id(value))
        return known is not None and known.per_example > 0 and known.number not in self.plan.sources

    def is_sum(self, value: Any) -> bool:
        """Returns whether a number is a sum of parts of the replicas."""
        return id(value) in self.wholes and not self.wholes[id(value)].per_example

    def part_of(self, value: Any) -> Any:
        """Returns this replica's part of a number: its part of a sum, or 1/N of a float that is equal on all."""
        if self.is_sum(value):
            return self.wholes[id(value)].rows
        if self.discovers or not (isinstance(value, tf.Tensor) and value.dtype.is_floating):
            return value
        return value / tf.cast(self.rows.replicas, value.dtype)

    def indices_of(self, values: list[Any]) -> list[int]:
        """Returns the indices of those of `values` that are tensors of the global batch."""
        return [self.wholes[id(one)].number for one in values if id(one) in self.wholes]

    def rows_per_example(self, value: Any) -> fractions.Fraction | int:
        """Returns the rows of a tensor for each example of the batch; 0: its rows are not those of the batch."""
        if id(value) in self.wholes:
            return self.wholes[id(value)].per_example
        if not _is_tensor(value) or not value.shape.rank:
            return 0
        examples = self.plan.batch
        if value.shape[0] is None and isinstance(value, _COMPOSITE):  # Such as the output of a layer for texts.
            return 1
        size = value.shape[0] or 0
        if examples == 1:
            return int(size == 1)
        # Such as one row for each pair of examples: in a smaller batch there are fewer rows per example.
        if not self.plan.is_static and size % examples**2 == 0:
            return 0
        divides = any(size % int(part * examples) == 0 for part in (*self.plan.data, 1) if part)
        return fractions.Fraction(size, examples) if size and divides else 0

    def _output(self, layer: keras.Layer, value: Any, per_example: fractions.Fraction | int | None) -> Any:
        if per_example is None:
            value, per_example = self._with_a_row_per_example(layer, value), 1
        if per_example:
            whole = self.whole_of(value, per_example)
            mask = None if isinstance(value, _COMPOSITE) else rows_lib.mask_of(value)
            return whole if mask is None else rows_lib.with_mask(whole, self.whole_of(mask, per_example))
        if not isinstance(value, tf.Tensor) or value.shape.rank != 0 or tf.get_static_value(value) is not None:
            return value
        # A number that a layer computes from its rows, such as a loss, is taken as a mean over them; an integer as a
        # count; a boolean from the first replica with examples.
        if value.dtype.is_floating:
            return self.whole_mean(value)
        counts = self.rows.count > 0
        if value.dtype.is_bool:
            counts &= tf.equal(self.rows.low, 0)
        part = tf.cast(value, tf.int64) * tf.cast(counts, tf.int64)
        return tf.cast(self.whole_sum(part), value.dtype)

    def _with_a_row_per_example(self, layer: keras.Layer, value: tf.Tensor) -> tf.Tensor:
        if self.discovers:
            return value
        words = (
            f"The layer {layer.name} returns a number of rows that depends on the values of the batch, which replicas "
            "cannot gather: return one row for each example, and select rows outside of layers. Rows, and examples:"
        )
        sizes = tf.stack([tf.shape(value, tf.int64)[0], tf.maximum(self.rows.count, 1)])
        mask = rows_lib.mask_of(value)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(sizes[0], sizes[1]), [words, sizes])]):
            return rows_lib.with_mask(tf.identity(value), mask)

    def whole_mean(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the mean of a number over the replicas, weighted by their examples."""
        return self.whole_sum(value * tf.cast(self.rows.weight, value.dtype))

    def whole_sum(self, part: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the replicas' parts of a number. It is computed only if the step reads it."""
        number = len(self.wholes)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            if self.recording:
                return trainer.sum_differentiable(upstream)
            return upstream * tf.cast(self.rows.replicas, upstream.dtype)

        total = trainer.sum_differentiable if number in self.plan.read else tf.identity
        whole = tf.identity(part) if self.discovers else _with_gradient(total, backward, part)
        self.wholes[id(whole)] = _Whole(whole, part, number, 0)
        return whole

    def parts_of_losses(self) -> list[tf.Tensor]:
        """Returns this replica's parts of the numbers that are sums of parts, such as losses."""
        return [one.rows for one in self.wholes.values() if not one.per_example]

    def add_loss(self, original: Callable[..., None], layer: keras.Layer, loss: Any) -> None:
        """Replaces `add_loss` of a layer: what it adds on this replica's rows becomes a loss of the global batch."""
        if self.compiles:
            before = len(attributes.added_losses(layer))
            original(layer, loss)
            added = enumerate(attributes.added_losses(layer))
            self.losses += [((layer, index), one) for index, one in added if index >= before]
        elif self.on_rows is not None and not self.in_inner_graph:
            original(layer, [self._whole_loss(one) for one in keras.tree.flatten(loss)])
        else:
            original(layer, loss)

    def _whole_loss(self, loss: Any) -> tf.Tensor:
        """Returns the mean of a scalar over the examples of all replicas, or the sum of one value per example."""
        loss = tf.convert_to_tensor(loss)
        return self.whole_sum(tf.reduce_sum(loss[: self.rows.count])) if loss.shape.rank else self.whole_mean(loss)

    def own_rows(self, whole: Any, per_example: fractions.Fraction | int) -> Any:
        """Returns this replica's rows of a tensor of the global batch."""
        known = self.wholes.get(id(whole))
        if known is not None and known.number not in self.plan.sources:
            return known.rows
        if self.discovers:
            return tf.identity(whole)
        _refuse_kinds(whole)
        rows = self.rows.scaled(per_example)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            # If rows are looked up, as by `tf.gather`, `upstream` is tf.IndexedSlices.
            return rows.gather(tf.convert_to_tensor(upstream)) / tf.cast(rows.replicas, upstream.dtype)

        own, mask = _with_gradient(rows.take, backward, whole), rows_lib.mask_of(whole)
        return own if mask is None else rows_lib.with_mask(own, self.own_rows(mask, per_example))

    def whole_of(self, own: Any, per_example: fractions.Fraction | int) -> Any:
        """Returns the tensor of the global batch for this replica's rows `own`: gathered only if the step reads it."""
        number = len(self.wholes)
        if self.discovers:
            whole = tf.identity(own)
        elif number not in self.plan.read:
            whole = self._placeholder(own, per_example)
        else:
            _refuse_kinds(own)
            whole = self._gather(own, per_example)
        if self.plan.is_static and isinstance(whole, tf.Tensor):
            whole.set_shape([int(per_example * self.plan.batch), *whole.shape[1:]])
        self.wholes[id(whole)] = _Whole(whole, own, number, per_example)
        logits = getattr(own, "_keras_logits", None)
        if logits is not None:  # Keras computes losses from the logits, because small probabilities are clipped.
            whole._keras_logits = self.whole_of(logits, per_example)
        return whole

    def _gather(self, own: tf.Tensor, per_example: fractions.Fraction | int) -> tf.Tensor:
        rows = self.rows.scaled(per_example)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            low, high = rows.low, rows.low + rows.count
            upstream = tf.convert_to_tensor(upstream)  # From tf.IndexedSlices, if rows are looked up.
            # All replicas have the same gradient, unless it becomes a part of a loss.
            if not self.recording:
                return upstream[low:high] * tf.cast(rows.replicas, upstream.dtype)
            return trainer.sum_differentiable(rows.pad_to_most(upstream))[low:high]

        size = rows.most * (own.shape[1:].num_elements() or 0) * own.dtype.size
        self.gathered.append((size, user_code.current_line()))
        # A replica without examples has a blank row.
        return _with_gradient(rows.gather, backward, own[: rows.count])

    def _placeholder(self, own: Any, per_example: fractions.Fraction | int) -> Any:
        """Returns a tensor of the shape of the global batch, whose values nobody reads."""
        total = self.rows.scaled(per_example).total
        if isinstance(own, tf.SparseTensor):
            shape = tf.concat([total[None], own.dense_shape[1:]], 0)
            return tf.SparseTensor(*tf.identity_n([own.indices, own.values]), shape)
        if isinstance(own, tf.RaggedTensor):
            splits = tf.pad(own.row_splits, [[0, tf.cast(total, own.row_splits.dtype) - own.nrows()]])
            return tf.RaggedTensor.from_row_splits(tf.identity(own.values), splits, validate=False)
        whole = tf.zeros(tf.concat([total[None], tf.shape(own, tf.int64)[1:]], 0), own.dtype)
        whole.set_shape([None, *own.shape[1:]])
        return whole

    def whole_batch(self, data: Any) -> Any:
        """Returns the nested tensors of the global batch for this replica's rows `data`."""
        per_example = iter(self.plan.data)

        def whole(own: Any) -> Any:
            part = None if own is None else next(per_example, fractions.Fraction(1))
            return self.whole_of(own, part) if part else own

        return tf.nest.map_structure(whole, data)

    def mark(self, values: Any, *, sources: bool = False) -> None:
        """Notes that the step reads those of the nested `values` that are tensors of the global batch."""
        for one in tf.nest.flatten(values):
            if self.discovers and id(one) in self.wholes:
                number = self.wholes[id(one)].number
                self.plan.read.add(number)
                if sources:
                    self.plan.sources.add(number)

    def finish(self) -> None:
        """Called at the end of a trace: notes what the step has read, or checks it against the plan."""
        functions = functools.cache(_functions_of)
        read = {one.number for one in self.wholes.values() if _is_read(one.tensor, functions)}
        if self.discovers:
            self.plan.read |= read.union(*(self.plan.updates.get(one, ()) for one in self.plan.read_metrics))
            self._measure()
        elif not read <= self.plan.read:
            raise ValueError(
                "The step reads other tensors when it is traced again. Its Python code must do the same each time: "
                "choose by tf.where, or by an argument of the constructor."
            )
        elif (size := sum(one for one, _ in self.gathered)) >= _MIN_LOGGED_BYTES and replicas_lib.is_first():
            lines = [line for _, line in sorted(self.gathered, reverse=True) if line != "a library"]
            lines = list(dict.fromkeys(lines))
            messages.log_once(f"Each step gathers {size / 1e6:.0f} MB of the batch, in {text.list_names(lines, 3)}.")

    def num_operations(self) -> int:
        return len(self.graph.get_operations())

    def _measure(self) -> None:
        """Logs which part of the step's work each replica does for the whole batch."""
        factor = self.plan.batch // self.plan.examples
        work = [_work(one, factor) for one in self.graph.get_operations()]
        in_layers = sum(sum(work[first:last]) for first, last in self.in_layers)
        whole = sum(work) - in_layers
        if whole >= _MIN_LOGGED_WORK and whole >= 0.1 * sum(work):
            self.log(
                f"{100 * whole / sum(work):.0f} % of the step's forward pass is computed for the whole batch on each "
                f"of the {self.rows.replicas} replicas, because it is outside of layers: put it into the `call` of a "
                "layer, and call the layer."
            )

    def complete_gradients(self, gradients: Any, sources: Any) -> Any:
        """Returns what `tape.gradient` returned for the nested `sources`, with the mean over replicas for variables.

        In a branch or function, where replicas cannot communicate, each replica has computed the whole gradient
        already.
        """
        flat, given = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        places = [place for place, one in enumerate(given) if isinstance(one, _VARIABLE) and flat[place] is not None]
        if not places or self.in_inner_graph:
            return gradients
        found = [flat[place] for place in places]
        if self.average is None or self.recording:
            # They may be part of a loss, so the sum must be differentiable.
            dense = [tf.convert_to_tensor(one) for one in found]
            found = [trainer.sum_differentiable(one / tf.cast(self.rows.replicas, one.dtype)) for one in dense]
        else:
            found = self.average(found, [given[place] for place in places])
        for place, gradient in zip(places, found, strict=True):
            flat[place] = gradient
        return tf.nest.pack_sequence_as(gradients, flat)

    def count_lookups_once(self, gradients: list[Any], variables: list[Any]) -> tuple[list[Any], list[tf.Tensor]]:
        """Counts only once each table lookup that every replica does for the whole batch, as on one device.

        These are lookups outside of layers, such as tf.gather in the step, and in layers that are called on whole
        tensors. Only those of the first replica count. If a table also has lookups of a replica's rows, its gradient
        becomes dense.

        Returns:
            The gradients, and the indices of the rows that every replica looks up.
        """
        forward = self.graph.get_operations()[: self.num_forward]
        in_layers = {op.name for first, last in self.in_layers for op in forward[first:last]}
        found, looked_up, names = list(gradients), [], {op.name for op in forward}
        for place, gradient in enumerate(gradients):
            if not isinstance(gradient, tf.IndexedSlices):
                continue
            lookups = {op.name for op in _uses(variables[place]) if op.type in _LOOKUPS} & names
            if lookups.isdisjoint(in_layers) and lookups:
                counts = tf.cast(tf.equal(replicas_lib.replica_id(), 0), tf.int32) * self.rows.replicas
                values = gradient.values * tf.cast(counts, gradient.values.dtype)
                found[place] = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
                looked_up.append(gradient.indices)
            elif lookups - in_layers:
                found[place] = tf.convert_to_tensor(gradient)
        return found, looked_up

    def cond(self, original: Callable[..., Any], pred: Any, *branches: Callable, **options: Any) -> Any:
        """Runs a condition of the step; if a branch updates variables, once for all replicas.

        Raises:
            ValueError: a branch updates variables while a tape records, which would miss what it computes.
        """
        line = user_code.current_line()
        if self.discovers:
            with patching.set_in_block(self, branch_updates=False):
                branches = (functools.partial(self._watch_branch, one) for one in branches)
                result = original(pred, *branches, **options)
                if self.branch_updates:
                    self.plan.updating_branches.add(line)
            return result
        if line not in self.plan.updating_branches:
            return original(pred, *branches, **options)
        if self.recording:
            try:
                return original(pred, *branches, **options)  # A replica may update variables of metrics.
            except RuntimeError as error:
                raise ValueError(
                    f"A branch of tf.cond updates variables while a tf.GradientTape records, in {line}\n"
                    "Put the update after the tape's block."
                ) from error
        # All replicas take the branch of the first one.
        first = tf.cast(pred, tf.int32) * tf.cast(tf.equal(replicas_lib.replica_id(), 0), tf.int32)
        chosen = trainer.sum_differentiable(first) > 0
        branches = [functools.partial(_trace_branch, of_step(), trainer.draws_of_branch(), one) for one in branches]
        return trainer.cond_on_all_replicas(chosen, *branches)

    def _watch_branch(self, function: Callable[[], Any]) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with patching.set_in_block(self, branch=graph):
            result = function()
        self.branch_updates |= any("AssignVariable" in op.type for op in graph.get_operations())
        return result

    def note_update_in_layer(self, metric: keras.Metric) -> None:
        """Notes that the layer that now runs updates a metric: the next trace calls it on whole tensors."""
        if self.rows.replicas > 1:
            self.plan.updating.append(self.on_rows)
        self.log(
            f"{type(self.on_rows).__name__} {self.on_rows.name!r} updates the metric {metric.name!r} in its call: each "
            f"of the {self.rows.replicas} replicas computes it for the whole batch. Update it in a train_step, by what "
            "the layer returns."
        )


def _refuse_kinds(value: Any) -> None:
    if isinstance(value, tf.Tensor) and value.dtype.is_complex:
        raise ValueError(
            f"The step reads complex numbers of a layer or the batch, which replicas cannot gather, in "
            f"{user_code.current_line()}\nReturn and pass their real and imaginary parts: tf.math.real, tf.math.imag."
        )
    if isinstance(value, _COMPOSITE):
        raise ValueError(
            f"The step reads a {type(value).__name__} of the batch, which replicas cannot gather, in "
            f"{user_code.current_line()}\nPass it to layers only, or make it dense in the data, by .to_tensor()."
        )


def _work(operation: tf.Operation, factor: int) -> int:
    """Returns the number of multiplications of an operation, or else of the elements of its outputs.

    Args:
        factor: rows of the trace / rows of a batch; this factor is removed from each dimension that it divides.
    """

    def elements(tensor: tf.Tensor) -> int:
        sizes = tensor.shape.as_list() if tensor.shape.is_fully_defined() else [0]
        return math.prod(size // factor if size % factor == 0 else size for size in sizes)

    size = sum(map(elements, operation.outputs))
    if operation.type in ("MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative", "Conv3D"):
        kernel = operation.inputs[1]
        return size * (elements(kernel) // max(1, kernel.shape[-1] or 1) if kernel.shape.rank else 1)
    return size


def _functions_of(graph: tf.Graph) -> dict[str, Any]:
    """Returns the functions of a graph by name: those of its branches, loops and calls."""
    return {one.signature.name: one for one in graph.as_graph_def().library.function}


def _is_read(whole: Any, functions: Callable[[tf.Graph], dict[str, Any]]) -> bool:
    """Returns whether an operation of the graph reads the values of a tensor, and not only its shape."""
    parts = [one for one in tf.nest.flatten(whole, expand_composites=True) if isinstance(one, tf.Tensor)]
    if isinstance(whole, tf.SparseTensor):
        parts.pop()  # Its shape.
    uses = [
        (op, place) for part in parts for op in part.consumers() for place, one in enumerate(op.inputs) if one is part
    ]
    if isinstance(whole, tf.RaggedTensor):  # tf.shape casts the row splits, which reads no values.
        uses = [(op, place) for op, place in uses if op.type != "Cast" or _is_read(op.outputs[0], functions)]
    return any(_reads(op.node_def, place, functools.partial(functions, op.graph)) for op, place in uses)


def _reads(node: Any, place: int, functions: Callable[[], dict[str, Any]]) -> bool:
    """Returns whether a node, or a function that it calls, reads the values of an input, and not only its shape.

    Args:
        place: which input.
        functions: returns those of the graph, by name; called only if the node calls one.
    """
    called = [one.name for value in node.attr.values() for one in (value.list.func or [value.func]) if one.name]
    inputs = [name for name in node.input if not name.startswith("^")]
    for function in map(functions().__getitem__, called) if called else ():
        arguments = [one.name for one in function.signature.input_arg]
        if place < len(inputs) - len(arguments):  # The condition of a branch.
            return True
        argument = arguments[place - len(inputs)]
        # A loop returns what it does not change.
        if argument in function.ret.values() and not node.op.endswith("While"):
            return True
        uses = [
            (inner, index) for inner in function.node_def for index, one in enumerate(inner.input) if one == argument
        ]
        if any(_reads(*use, functions) for use in uses):
            return True
    return not called and node.op not in _OF_SHAPE


def _has_unknown_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and bool(value.shape.rank) and value.shape[0] is None


def _with_gradient(forward: Callable[[tf.Tensor], tf.Tensor], backward: Callable, value: tf.Tensor) -> tf.Tensor:
    """Returns `forward(value)`; `backward` computes the gradient of `value` from that of the result."""
    compute = tf.custom_gradient(lambda given: (forward(given), backward))
    return compute(value) if value.dtype.is_floating else forward(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor | _COMPOSITE)


def zeros(source: Any) -> tf.Tensor | tf.IndexedSlices:
    """Returns zeros in place of a derivative, in a trace without effect; one row if a table is only looked up."""
    if isinstance(source, tf.Tensor):
        return tf.zeros_like(source)
    if {op.type for op in _uses(source)} in ({"GatherV2"}, {"ResourceGather"}):
        row = tf.zeros([1, *source.shape[1:]], source.dtype)
        return tf.IndexedSlices(row, tf.zeros([1], tf.int32), tf.constant(list(source.shape)))
    return tf.zeros(source.shape, source.dtype)


def _uses(variable: Any) -> list[tf.Operation]:
    """Returns the operations of the graph that use the value of a variable, which was made outside of the graph."""
    value = checkpoint_format.tf_variable(variable)
    if not isinstance(value, tf.Variable):
        return []
    # A trace without effect is outside of replicas.
    part = getattr(value, "values", [value])[0] if of_step().discovers else value
    waiting, found = [tf.compat.v1.get_default_graph().capture(part.handle)], []
    while waiting:
        for op in waiting.pop().consumers():
            if op.type in ("ReadVariableOp", "Identity"):
                waiting += op.outputs
            else:
                found.append(op)
    return found


def replica_of_draws() -> tf.Tensor:
    """Returns the replica whose random numbers are drawn, int32 []: outside of layers all draw the same."""
    return tf.constant(0) if current() is not None else replicas_lib.replica_id()


# Whether layers that mix the rows of a batch are called on whole tensors: --whole_calls of tfdist.run.
whole_calls = False


def set_whole_calls(value: bool) -> None:
    """Sets `whole_calls` for the rest of the process."""
    global whole_calls
    whole_calls = value


# The replicas of a process are traced in threads of their own, in turn.
_tracing = threading.local()


def current() -> GlobalView | None:
    """Returns the view of the step that this thread traces; None outside of a step, and in a layer that it calls."""
    view = getattr(_tracing, "view", None)
    return None if view is None or view.in_layer else view


def of_step() -> GlobalView | None:
    """Returns the view of the step that this thread traces, also in a layer; None outside of a step."""
    return getattr(_tracing, "view", None)


@contextlib.contextmanager
def tracing_step(viewed: bool, view: GlobalView) -> Iterator[None]:
    """Marks the block that traces a step in this thread; `viewed`: the step sees the global batch."""
    with patching.set_in_block(_tracing, view=view if viewed else None, step=view):
        yield


def apply(original: Callable[..., Any], optimizer: keras.optimizers.Optimizer, *args: Any, **keywords: Any) -> Any:
    """Calls the `apply` of an optimizer, and marks the call, so that `cond` recognises branches of the optimizer."""
    with patching.set_in_block(_tracing, applied=optimizer):
        return original(optimizer, *args, **keywords)


def cond(original: Callable[..., Any], pred: Any, true_fn: Any = None, false_fn: Any = None, **options: Any) -> Any:
    """Replaces TensorFlow's `cond`: branches that update variables run once for all replicas, as TensorFlow requires.

    These are branches of Keras' optimizers, whose formulas, slots and step counts stay the same, and of a user's step.
    """
    names = ("gradient_accumulation_steps", "ema_overwrite_frequency")
    if any(getattr(getattr(_tracing, "applied", None), each, None) for each in names):
        return trainer.cond_on_all_replicas(
            pred, *(functools.partial(_drop_result, one) for one in (true_fn, false_fn))
        )
    view = getattr(_tracing, "step", None)
    if view is None or view.in_layer or view.in_inner_graph or not _is_of_step(true_fn):
        return original(pred, true_fn, false_fn, **options)
    return view.cond(original, pred, true_fn, false_fn, **options)


def _is_of_step(branch: Any) -> bool:
    """Returns whether a branch is the user's, or an `if` of the user's that AutoGraph has converted."""
    return user_code.defines(branch) or f"{branch.__module__}".startswith("tensorflow.python.autograph.")


def _trace_branch(
    view: GlobalView | None,
    draws: Callable[[], contextlib.AbstractContextManager[None]],
    function: Callable[[], Any],
) -> Any:
    """Traces a branch of a step, in a thread of its own."""
    with draws(), patching.set_in_block(_tracing, view=view):
        return function()


def _drop_result(function: Callable[[], Any]) -> None:
    function()  # The structure may differ between branches.


def call_in_step(method: Callable[..., Any], original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Returns `method(view, original, *args)` while the code of a step is traced, otherwise `original(*args)`."""
    view = current()
    return original(*args, **keywords) if view is None else method(view, original, *args, **keywords)
