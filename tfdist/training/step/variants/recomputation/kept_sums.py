"""Sums over replicas in layers that are computed again: the second computation takes those of the first one."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.training.step import collectives


def keep(compute: Callable[[], Any]) -> tuple[Any, list[tf.Tensor]]:
    """Returns what `compute` returns, and the results of `sum_differentiable` in it, for `repeat`."""
    kept: list[tf.Tensor] = []

    def reduce(value: tf.Tensor) -> tf.Tensor:
        kept.append(collectives.all_reduce(value))
        return kept[-1]

    with collectives.reduce_context(reduce):
        return compute(), kept


@contextlib.contextmanager
def repeat(kept: list[tf.Tensor]) -> Iterator[None]:
    """In the block, which traces the same computation, its sums are `kept`, and only its gradient communicates."""
    sums = iter(kept)

    @tf.custom_gradient
    def reduce(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        del value
        return tf.identity(next(sums)), collectives.all_reduce

    with collectives.reduce_context(reduce):
        yield
