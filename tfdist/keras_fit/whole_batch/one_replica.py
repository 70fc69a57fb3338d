"""What the code of a step sees of `tf.distribute`: one replica, which has the global batch, as under Keras alone.

The code of a layer that runs on a replica's rows sees one replica, too. If such a layer combines the rows of all
replicas by `all_reduce`, it gets its own back; `probe` finds that its result depends on the other rows, and a log line
names it.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.config import patching, user_code
from tfdist.config.patching import patch, replace_attribute, restore_after
from tfdist.keras_fit.whole_batch import attributes, global_view

_AUTOGRAPH = "/tensorflow/python/autograph/"


class OneReplica:
    """The part of `tf.distribute.ReplicaContext` that a step uses: values to sum or gather are complete.

    Args:
        context: the context of the replica; None in a trace without effect, which is outside of replicas.
    """

    num_replicas_in_sync = 1
    replica_id_in_sync_group = 0

    def __init__(self, context: tf.distribute.ReplicaContext | None):
        self._context = context

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
        if self._context is None:
            return merge_fn(self.strategy, *args, **(kwargs or {}))
        return self._context.merge_call(merge_fn, args, kwargs)


def replica_context(original: Callable[[], Any]) -> Any:
    """Calls `tf.distribute.get_replica_context`; for a user's code in a step, returns `OneReplica`."""
    return OneReplica(original()) if _is_asked_by_step() else original()


def in_cross_replica_context(original: Callable[[], bool]) -> bool:
    """Calls `tf.distribute.in_cross_replica_context`; for a user's code in a step, returns False."""
    return not _is_asked_by_step() and original()


def merge_call(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Calls `ReplicaContext.merge_call`, and then restores this replica's attributes.

    Meanwhile other replicas of the process are traced, which set the same attributes.
    """
    view = global_view.of_step()
    if view is None or not view.objects:
        return original(*args, **keywords)
    kept = attributes.Attributes(view.objects)
    result = original(*args, **keywords)
    kept.restore()
    return result


def _is_asked_by_step() -> bool:
    """Returns whether the user's code asks, in a step or in a layer that the step calls."""
    if global_view.of_step() is None:
        return False
    frame = inspect.currentframe()
    while frame.f_code.co_filename in (__file__, patching.__file__) or _AUTOGRAPH in frame.f_code.co_filename:
        frame = frame.f_back
    return user_code.is_users(frame.f_code.co_filename)


@contextlib.contextmanager
def show_one_replica() -> Iterator[None]:
    """In the block, `tf.distribute` tells a user's code in a step that there is one replica."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(tf.distribute, "get_replica_context", replica_context))
        stack.enter_context(patch(tf.distribute, "in_cross_replica_context", in_cross_replica_context))
        stack.enter_context(patch(tf.distribute.ReplicaContext, "merge_call", merge_call))
        for owner in (tf.distribute.Strategy, tf.distribute.ReplicaContext):
            stack.enter_context(restore_after([owner], ["num_replicas_in_sync"]))
            original = owner.num_replicas_in_sync

            def number(one: Any, original: property = original) -> int:
                return 1 if _is_asked_by_step() else original.fget(one)

            replace_attribute(owner, "num_replicas_in_sync", property(number))
        yield
