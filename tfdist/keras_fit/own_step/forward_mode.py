"""Derivatives in forward mode, by `tf.autodiff.ForwardAccumulator`, in a step: those of the global batch."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.config import user_code
from tfdist.config.patching import set_in_block
from tfdist.keras_fit.own_step.replica_step import ReplicaStep, check_clear, zeros
from tfdist.keras_fit.whole_batch import reductions


def watch(step: ReplicaStep, original: Callable, accumulator: Any, primals: Any, tangents: Any) -> None:
    """Makes an accumulator; one without variables while a step is traced without effect, where they have no handle.

    Raises:
        ValueError: directions of variables are not the same on all replicas.
    """
    pairs = list(zip(tf.nest.flatten(primals), map(tf.convert_to_tensor, tf.nest.flatten(tangents)), strict=True))
    shared = [direction for one, direction in pairs if isinstance(one, tf.Variable)]
    known = step.average is not None and step.rows.replicas > 1 and not tf.executing_eagerly()
    if known and any(reductions.depends_on_data(one.op, step.rows) for one in shared):
        raise ValueError(
            "A tf.autodiff.ForwardAccumulator gets a direction of variables that is not the same on all replicas, in "
            f"{user_code.current_line()}\nDraw it by tf.random.stateless_normal(shape, seed), with a seed made of a "
            "count such as optimizer.iterations, or compute it from gradients or weights."
        )
    step.units[id(accumulator)] = tf.zeros([], tf.float64)
    pairs = [pair for pair in pairs if not (step.without_effect and isinstance(pair[0], tf.Variable))]
    pairs.append((step.units[id(accumulator)], tf.ones([], tf.float64)))
    original(accumulator, *map(list, zip(*pairs, strict=True)))


def jvp(step: ReplicaStep, original: Callable, accumulator: Any, primals: Any, *args: Any, **options: Any) -> Any:
    """Returns derivatives: of numbers that are means or sums over the examples, those of the global batch.

    Derivatives of rows stay with the replica. So do those of arrays: how these depend on the examples is not known.
    """

    def complete(primal: Any, product: Any) -> Any:
        if product is None:
            return product
        kind = reductions.kind_of(primal, step.rows)
        if kind == "equal":
            step.rows.equal.add(product.op)
        if kind in ("equal", "rows") or product.shape.rank:
            return product
        check_clear(kind == "other")
        return step.mean(product * tf.cast(reductions.share(primal, step.rows), product.dtype))

    if step.without_effect:
        return tf.nest.map_structure(zeros, primals)
    found = original(accumulator, primals, *args, **options)
    if step.in_backward or step.average is None or step.rows.replicas == 1:
        return found
    return tf.nest.map_structure(complete, primals, found)


def add_up(step: ReplicaStep, original: Callable, *args: Any, **options: Any) -> Any:
    """Sums over the replicas, and the derivatives of accumulators, too; the last one of `args` is what is summed."""
    if not step.accumulators:
        return step.add_up(original, *args, **options)
    *given, values = args

    def add(value: tf.Tensor) -> tf.Tensor:
        with set_in_block(step, units={}):  # TensorFlow's sum calls this method again for its gradient.
            return step.add_up(original, *given, value, **options)

    return tf.nest.map_structure(functools.partial(_sum, step, add, step.accumulators), values)


def _sum(step: ReplicaStep, add: Callable[[Any], Any], accumulators: list[Any], value: tf.Tensor) -> tf.Tensor:
    """Accumulators, the outer ones first, do not see into a sum over replicas.

    What they watch, and is 0, is multiplied by the sum of the derivatives.
    """
    if not accumulators:
        return add(value)

    @tf.custom_gradient
    def hidden(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return add(tf.stop_gradient(value)), add

    total = hidden(value)
    for place, one in enumerate(accumulators):
        with set_in_block(step, in_backward=True):
            product = one.jvp(value)
        if product is not None:
            product = _sum(step, add, accumulators[:place], product)
            total += tf.cast(step.units[id(one)], total.dtype) * product
    return total
