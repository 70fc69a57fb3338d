"""What the code of a step sees of `tf.distribute`: one replica, which has the global batch, as under Keras alone."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.config import user_code
from tfdist.keras_fit.whole_batch import global_view


class OneReplica:
    """The part of `tf.distribute.ReplicaContext` that a step uses: values to sum or gather are complete."""

    num_replicas_in_sync = 1
    replica_id_in_sync_group = 0

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.get_strategy()

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Returns `value`, nested tensors of any shapes."""
        return value

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Returns `value`, nested tensors of any shapes."""
        return value

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn(strategy, *args)` once for all replicas."""
        context = tf.distribute.get_replica_context()
        if context is None:  # The trace without effect is outside of replicas.
            return merge_fn(self.strategy, *args, **(kwargs or {}))
        return context.merge_call(merge_fn, args, kwargs)


def replica_context(original: Callable[[], Any]) -> Any:
    """Calls `tf.distribute.get_replica_context`; for a user's code in a step, returns `OneReplica`."""
    return OneReplica() if _is_asked_by_step() else original()


def in_cross_replica_context(original: Callable[[], bool]) -> bool:
    """Calls `tf.distribute.in_cross_replica_context`; for a user's code in a step, returns False."""
    return not _is_asked_by_step() and original()


def _is_asked_by_step() -> bool:
    """Returns whether the caller is the user's code, in a step, or in a layer whose rows are the whole batch."""
    view = global_view.of_step()
    if view is None or (view.in_layer and not view.discovers):
        return False
    frame = inspect.currentframe().f_back.f_back.f_back  # The caller of the function that replaces TensorFlow's.
    while "/tensorflow/python/autograph/" in frame.f_code.co_filename:
        frame = frame.f_back
    return user_code.is_users(frame.f_code.co_filename)


# Owner, name, and the function that replaces it.
REPLACED = (
    (tf.distribute, "get_replica_context", replica_context),
    (tf.distribute, "in_cross_replica_context", in_cross_replica_context),
)
