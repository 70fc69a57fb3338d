"""Branches and loops that are taken once for all replicas, in cross-replica context: in a step, and in optimizers."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import ops

from tfdist.config import patching
from tfdist.config.patching import patch
from tfdist.training.step import collectives


def repeat_on_all_replicas(function: Callable[[], tf.Tensor]) -> None:
    """Calls `function` on every replica until it returns False: bool [], equal on all replicas.

    In cross-replica context: TensorFlow rejects collectives of mirrored replicas in a loop on a replica.
    """

    def on_all_replicas(strategy: tf.distribute.Strategy, function: Callable) -> None:
        def run(again: tf.Tensor) -> tuple[tf.Tensor]:
            again = strategy.extended.call_for_each_replica(_result, args=(function,))
            return (strategy.experimental_local_results(again)[0],)

        tf.while_loop(lambda again: again, run, (tf.constant(True),), parallel_iterations=1)

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(function,))


def _result(function: Callable[[], Any]) -> Any:
    return function()


# Set in a thread that traces the `apply` of an optimizer: the replicas of a process are traced in threads, in turn.
_applying = threading.local()


@contextlib.contextmanager
def take_branches_once(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes the branches of `optimizer` those of all replicas; restores its methods.

    For `gradient_accumulation_steps` and `ema_overwrite_frequency` Keras branches on each replica, where an optimizer
    cannot update weights. Formulas, slots and the count of steps stay Keras'.
    """
    names = ("gradient_accumulation_steps", "ema_overwrite_frequency")
    if not any(getattr(optimizer, name, None) for name in names):
        yield
        return
    with (
        patch(ops, "cond", _cond),
        patch(optimizer, "_backend_apply_gradients", _apply),
        patch(optimizer, "_overwrite_model_variables_with_average_value", _overwrite),
    ):
        yield


def _apply(original: Callable[..., None], gradients: list[Any], variables: list[Any]) -> None:
    with patching.set_in_block(_applying, now=True):
        original(gradients, variables)


def _cond(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return (collectives.cond_on_all_replicas if getattr(_applying, "now", False) else original)(*args, **keywords)


def _overwrite(original: Callable[..., None], variables: list[Any]) -> None:
    replica_context = tf.distribute.get_replica_context()
    if replica_context is None:
        original(variables)
    else:
        replica_context.merge_call(lambda strategy: original(variables))
