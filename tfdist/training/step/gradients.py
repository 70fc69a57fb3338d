"""Gradients between the backward pass and the optimizer: all-reduce, clipping, test for non-finite values."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.training.step import timing
from tfdist.training.step.tables import row_gather, sparse_gradients

Gradients = list[sparse_gradients.Gradient | None]


def with_pack_size(options: config_lib.Communication, implementation: str) -> config_lib.Communication:
    """Returns `options` with the size of packs that suits the implementation, "nccl" or "ring", if it is not set."""
    if options.bytes_per_pack is not None:
        return options
    return dataclasses.replace(options, bytes_per_pack={"nccl": 32_000_000, "ring": 8_000_000}[implementation])


def sum_over_replicas(
    gradients: Gradients,
    flags: list[tf.Tensor],
    statistics: Sequence[tuple[keras.Variable, tf.Tensor]],
    weight: tf.Tensor | float,
    *,
    num_replicas: int,
    options: config_lib.Communication,
    communication: tf.Variable,
    clock: timing.Clock,
) -> tuple[Gradients, list[tf.Tensor]]:
    """Sums gradients and flags, and averages the changes of moving statistics, in the one all-reduce of a step.

    Args:
        gradients: of this replica's shard.
        flags: float32 [] each, which are summed with the gradients.
        statistics: variables that this replica has updated, and their values before. Each is set to the mean over
            replicas. In every step: averaged at a save only, the time of the save would change the last bits of the
            run. The changes are averaged and not the values, so that a variable that did not change keeps its bits.
        weight: this replica's weight in that mean; 1 in total over all replicas.
        communication: the seconds that the all-reduce took are added to it.
        clock: returns the time at which tensors are computed.

    Returns:
        The sums of gradients and flags.
    """
    if options.sparse_as_dense:
        gradients = [None if gradient is None else sparse_gradients.sum_rows(gradient) for gradient in gradients]
    if num_replicas == 1:
        return gradients, flags
    tensors = [*gradients, *flags]
    ready = clock(tensors)
    exact = [(variable.value - old) * tf.cast(weight, old.dtype) for variable, old in statistics]
    if options.dtype == "float32":
        reduced = all_reduce([*tensors, *exact], options)
        tensors, exact = reduced[: len(tensors)], reduced[len(tensors) :]
    else:
        tensors = all_reduce(tensors, options)
        exact = all_reduce(exact, dataclasses.replace(options, dtype="float32"))
    communication.assign_add(clock([*tensors, *exact]) - ready)
    for (variable, old), change in zip(statistics, exact, strict=True):
        variable.assign(old + change)
    return tensors[: len(gradients)], tensors[len(gradients) :]


def all_reduce(
    gradients: list[sparse_gradients.Gradient | None], options: config_lib.Communication
) -> list[sparse_gradients.Gradient | None]:
    """Sums every gradient over all replicas; called in `strategy.run`.

    Args:
        gradients: one per variable, of any shape; None for a variable without a gradient.
        options: `dtype` is the type on the wire; the sums are returned in the gradients' own type. With "float32",
            float64 gradients are sent as float64. `bytes_per_pack` None: one pack.

    Returns:
        The sums, in the same order. Sparse ones have the rows of all replicas, in the order of the replicas.
    """
    context = tf.distribute.get_replica_context()
    rows = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    dense = [
        tf.convert_to_tensor(gradient)
        for gradient in gradients
        if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
    ]
    if context.num_replicas_in_sync > 1:
        dense = _sum_tensors(dense, options)
        add, wire_type = (functools.partial(function, options=options) for function in (_sum_tensors, _wire_type))
        rows = row_gather.gather(rows, add, wire_type)
    results = {True: iter(rows), False: iter(dense)}
    return [
        None if gradient is None else next(results[isinstance(gradient, tf.IndexedSlices)]) for gradient in gradients
    ]


def _sum_tensors(tensors: list[tf.Tensor], options: config_lib.Communication) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    wire = [tf.cast(tensor, _wire_type(tensor, options)) for tensor in tensors]
    communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=options.bytes_per_pack or 0)
    # Tensors of one dtype share a collective.
    for dtype in dict.fromkeys(tensor.dtype for tensor in wire):
        chosen = [i for i, tensor in enumerate(wire) if tensor.dtype == dtype]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [wire[i] for i in chosen], options=communication)
        for i, total in zip(chosen, sums, strict=True):
            wire[i] = total
    return [tf.cast(total, tensor.dtype) for total, tensor in zip(wire, tensors, strict=True)]


def _wire_type(tensor: tf.Tensor, options: config_lib.Communication) -> tf.DType:
    exact = tensor.dtype.is_integer or (options.dtype == "float32" and tensor.dtype == tf.float64)
    return tensor.dtype if exact else tf.as_dtype(options.dtype)


def replicas() -> int:
    """Returns the number of all replicas; called in `strategy.run`. Elsewhere, returns 1."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


class _Trace(threading.local):
    """Settings of the step that this thread traces: each replica of a process is traced in its own thread, in turns."""

    # The argument of `weighted`; None outside of it.
    weight: tf.Tensor | None = None


_trace = _Trace()


@contextlib.contextmanager
def weighted(weight: tf.Tensor) -> Iterator[None]:
    """Traces a step whose gradients are multiplied by `weight` (float32 [], 1 in total) after the backward pass.

    The loss is then the mean of the replicas' losses with these weights, and gradients through `sum_value` are those of
    this mean.
    """
    _trace.weight = weight
    try:
        yield
    finally:
        _trace.weight = None


def sum_value(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas in a collective of its own; outside of `strategy.run`, returns it.

    bfloat16 is summed in float32: TensorFlow's NCCL collectives do not support it.
    """
    if replicas() == 1:
        return value
    if value.dtype == tf.bfloat16:
        return tf.cast(sum_value(tf.cast(value, tf.float32)), value.dtype)
    context = tf.distribute.get_replica_context()
    if _trace.weight is None:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    weight = _trace.weight

    @tf.custom_gradient
    def total(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value), backward

    # Divided by the weight that multiplies the gradient later. `total` and `backward` are adjoint: each is the gradient
    # of the other.
    @tf.custom_gradient
    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        own = tf.cast(weight, upstream.dtype)
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.convert_to_tensor(upstream) * own)
        return tf.math.divide_no_nan(summed, own), total

    return total(value)


def scale(gradients: Gradients, factor: tf.Tensor | float) -> Gradients:
    """Multiplies gradients by `factor`, a number or float []; None stays None."""

    def scaled(gradient: sparse_gradients.Gradient | None) -> sparse_gradients.Gradient | None:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(scaled(gradient.values), gradient.indices, gradient.dense_shape)
        return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)

    return [scaled(gradient) for gradient in gradients]


def clip(gradients: Gradients, norm: float, own_norm: tf.Tensor | None = None) -> Gradients:
    """Scales gradients so that their global L2 norm is at most `norm` (arXiv 1211.5063).

    As Keras' `global_clipnorm`: the norm is over the rows of all lookups, and all gradients become dense.

    Args:
        gradients: summed over replicas.
        norm: the largest norm.
        own_norm: their norm, of their dtype: []; None: it is computed.
    """
    if own_norm is None:
        numbers = [sparse_gradients.values(gradient) for gradient in gradients if gradient is not None]
        own_norm = tf.sqrt(2.0 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(values) for values in numbers])))
    clipped, _ = tf.clip_by_global_norm(gradients, norm, own_norm)
    return [None if gradient is None else sparse_gradients.sum_rows(gradient) for gradient in clipped]


def all_finite(gradients: Gradients) -> tf.Tensor:
    """Returns whether all summed gradients are finite: bool [], the same on every replica."""
    # A sum is non-finite as soon as one term is: one reduction per tensor is enough.
    present = [sparse_gradients.values(one) for one in gradients if one is not None]
    dtype = tf.float64 if any(values.dtype == tf.float64 for values in present) else tf.float32
    sums = [tf.reduce_sum(tf.abs(tf.cast(values, dtype))) for values in present]
    return tf.reduce_all(tf.math.is_finite(tf.stack(sums or [tf.zeros([])])))


def cond(predicate: tf.Tensor, when_true: Callable[[], Any], when_false: Callable[[], Any]) -> None:
    """Calls on every replica `when_true` if `predicate` (bool [], equal on all replicas), else `when_false`.

    In cross-replica context: Keras rejects an optimizer's update in a `tf.cond` on a replica.
    """

    def on_all_replicas(strategy: tf.distribute.Strategy, predicate: tf.Tensor, *branches: Callable) -> None:
        def run(branch: Callable) -> tf.Tensor:
            strategy.extended.call_for_each_replica(_call, args=(branch,))
            return tf.zeros([])

        chosen = strategy.experimental_local_results(predicate)[0]
        tf.cond(chosen, *(functools.partial(run, branch) for branch in branches))

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(predicate, when_true, when_false))


def _call(function: Callable[[], Any]) -> None:
    function()  # Without its result, which may differ between branches.


def once(function: Callable[[], Any]) -> None:
    """Calls `function` once for all replicas, in cross-replica context."""
    context = tf.distribute.get_replica_context()
    if context is None:
        function()
    else:
        context.merge_call(lambda strategy: function())
