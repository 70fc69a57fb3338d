"""Branches in the `apply` of Keras' optimizers: `gradient_accumulation_steps` and `ema_overwrite_frequency`.

Keras branches on each replica, where an optimizer cannot update weights. Here a branch is taken once for all replicas.
Formulas, slots and the count of steps stay Keras'.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src import ops

from tfdist.config.patching import patch
from tfdist.training.step import collectives
from tfdist.training.step.updates import branches

# Set in a thread that traces such an `apply`: the replicas of a process are traced in threads, in turn.
_applying = threading.local()


@contextlib.contextmanager
def take_branches_once(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes the branches of `optimizer` those of all replicas; restores its methods."""
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
    _applying.now = True
    try:
        original(gradients, variables)
    finally:
        _applying.now = False


def _cond(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return (collectives.cond_on_all_replicas if getattr(_applying, "now", False) else original)(*args, **keywords)


def _overwrite(original: Callable[..., None], variables: list[Any]) -> None:
    branches.in_cross_replica_context(lambda: original(variables))
