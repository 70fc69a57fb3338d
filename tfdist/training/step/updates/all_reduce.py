"""The all-reduce of a step's update: sums gradients, flags and changes of moving statistics over all replicas."""

import dataclasses
import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.devices import replicas
from tfdist.training.step import timing
from tfdist.training.step.updates import gathered_rows, tables
from tfdist.training.step.updates.tables import Gradients


def with_pack_size(options: config_lib.Communication, implementation: str) -> config_lib.Communication:
    """Returns `options` with the default of `bytes_per_pack`, if it is not set: 32 MB for NCCL, else 4 MB."""
    if options.bytes_per_pack is not None:
        return options
    return dataclasses.replace(options, bytes_per_pack=32_000_000 if implementation == "nccl" else 4_000_000)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """The all-reduce of the steps of a run; called in `strategy.run`."""

    num_replicas: int
    options: config_lib.Communication  # `bytes_per_pack` is set.
    # Seconds of communication since the execution started, per replica; see timing.py.
    seconds: tf.Variable
    # (tensors) -> the time at which they are ready; see timing.py.
    clock: timing.Clock

    def __call__(
        self,
        gradients: Gradients,
        flags: list[tf.Tensor],
        statistics: Sequence[tuple[keras.Variable, tf.Tensor]],
        weight: tf.Tensor | float,
    ) -> tuple[Gradients, list[tf.Tensor]]:
        """Sums gradients and flags, and averages the changes of moving statistics.

        Args:
            flags: float32 [] each, summed together with the gradients.
            statistics: variables that this replica has updated, with their values before the step. They are averaged in
                every step, so that saving does not change the result. The changes are averaged, not the values, so that
                an unchanged variable keeps its exact value.
            weight: this replica's weight in that mean, a number or float64 []; 1 in total over all replicas.
        """
        options = self.options
        if options.sparse_as_dense:
            gradients = [None if gradient is None else tables.sum_rows(gradient) for gradient in gradients]
        if self.num_replicas == 1:
            return gradients, flags
        # Tensors are sent from the end of the list: the gradients of the last layers are ready first.
        tensors = [*flags, *gradients]
        ready = self.clock(tensors)
        changes = [(variable.value - old) * tables.as_dtype(weight, old.dtype) for variable, old in statistics]
        if options.dtype == "float32":
            reduced = sum_over_replicas([*changes, *tensors], options)
            changes, tensors = reduced[: len(changes)], reduced[len(changes) :]
        else:  # The statistics are not rounded.
            tensors = sum_over_replicas(tensors, options)
            changes = sum_over_replicas(changes, dataclasses.replace(options, dtype="float32"))
        self.seconds.assign_add(self.clock([*tensors, *changes]) - ready)
        for (variable, old), change in zip(statistics, changes, strict=True):
            variable.assign(old + change)
        return tensors[len(flags) :], tensors[: len(flags)]

    def sum_and_time(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums `tensors` over all replicas, and adds the duration to `seconds`."""
        if self.num_replicas == 1:
            return tensors
        ready = self.clock(tensors)
        sums = sum_over_replicas(tensors, self.options)
        self.seconds.assign_add(self.clock(sums) - ready)
        return sums


def sum_over_replicas(gradients: Gradients, options: config_lib.Communication) -> Gradients:
    """Sums every gradient over all replicas; called in `strategy.run`.

    Args:
        gradients: one per variable, of any shape; None for a variable without a gradient.
        options: `dtype` is the type on the wire; the sums are returned in the gradients' own type. With "float32",
            float64 gradients are sent as float64. `bytes_per_pack` None: one pack.

    Returns:
        The sums, in the same order. Sparse gradients hold the rows of all replicas, in the order of the replicas.
    """
    replica_context = tf.distribute.get_replica_context()
    rows = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    dense = [
        tf.convert_to_tensor(gradient)
        for gradient in gradients
        if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
    ]
    if replica_context.num_replicas_in_sync > 1:
        dense = _sum_tensors(dense, options)
        add = functools.partial(_sum_tensors, options=options)
        wire_type = functools.partial(_wire_type, options=options)
        rows = gathered_rows.gather(rows, add, wire_type) if rows else rows
    results = {True: iter(rows), False: iter(dense)}
    return [
        None if gradient is None else next(results[isinstance(gradient, tf.IndexedSlices)]) for gradient in gradients
    ]


def _sum_tensors(tensors: list[tf.Tensor], options: config_lib.Communication) -> list[tf.Tensor]:
    replica_context = tf.distribute.get_replica_context()
    wire = [tf.cast(tensor, _wire_type(tensor, options)) for tensor in tensors]
    communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=options.bytes_per_pack or 0)
    for dtype in dict.fromkeys(tensor.dtype for tensor in wire):
        chosen = [i for i, tensor in enumerate(wire) if tensor.dtype == dtype]
        add = functools.partial(replica_context.all_reduce, tf.distribute.ReduceOp.SUM, options=communication)
        # If the run uses tfdist's ring over TCP, it replaces TensorFlow's all-reduce.
        if replicas.rings and dtype in replicas.rings[0].DTYPES:
            add = functools.partial(replicas.rings[0].sum, bytes_per_pack=options.bytes_per_pack or 0)
        sums = add([wire[i] for i in chosen])
        for i, total in zip(chosen, sums, strict=True):
            wire[i] = total
    return [tf.cast(total, tensor.dtype) for total, tensor in zip(wire, tensors, strict=True)]


def _wire_type(tensor: tf.Tensor, options: config_lib.Communication) -> tf.DType:
    exact = tensor.dtype.is_integer or (options.dtype == "float32" and tensor.dtype == tf.float64)
    return tensor.dtype if exact else tf.as_dtype(options.dtype)
