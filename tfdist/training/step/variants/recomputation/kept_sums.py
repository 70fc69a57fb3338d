"""Sums over replicas in layers that are computed again: the second computation takes those of the first one."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist.training.step import collectives


@contextlib.contextmanager
def keep(kept: list[tf.Tensor]) -> Iterator[None]:
    """Traces a computation in which the results of `sum_differentiable` are appended to `kept`."""

    def reduce(value: tf.Tensor) -> tf.Tensor:
        kept.append(collectives.all_reduce(value))
        return kept[-1]

    with collectives.reduce_context(reduce):
        yield


@contextlib.contextmanager
def repeat(kept: list[tf.Tensor]) -> Iterator[None]:
    """Traces the computation of `keep` again: it takes the sums from there, and only its gradient communicates."""
    sums = iter(kept)

    @tf.custom_gradient
    def reduce(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        del value
        return tf.identity(next(sums)), collectives.all_reduce

    with collectives.reduce_context(reduce):
        yield
