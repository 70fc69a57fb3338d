"""Rejects collectives in code that runs on one worker only: they would wait for the other workers forever."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

# (what runs on this worker only, advice to the user), outermost first.
_running: list[tuple[str, str]] = []


@contextlib.contextmanager
def on_one_worker(what: str, advice: str) -> Iterator[None]:
    """Makes `check` raise inside the context: `what` runs on this worker only."""
    _running.append((what, advice))
    try:
        yield
    finally:
        _running.pop()


def on_this_worker_only() -> bool:
    """Returns True inside `on_one_worker`."""
    return bool(_running)


def check(purpose: str) -> None:
    """Checks that all workers can take part in `purpose`; called before each collective.

    Raises:
        RuntimeError: called inside `on_one_worker`.
    """
    if _running:
        what, advice = _running[-1]
        raise RuntimeError(f"{what} runs on one worker only, but {purpose} requires all workers: {advice}.")


@contextlib.contextmanager
def local(model: keras.Model) -> Iterator[None]:
    """Lets Keras' own `model.predict` run on this worker, with all data; methods with collectives raise."""
    before = model._distribute_strategy
    model._distribute_strategy = None  # None: TensorFlow's current strategy, the default one outside of scopes.
    rejected = ("fit", "evaluate", "train_on_batch", "test_on_batch")
    for name in rejected:
        vars(model)[name] = lambda *args, name=name, **keywords: check(f"model.{name}")
    try:
        yield
    finally:
        model._distribute_strategy = before
        for name in rejected:
            vars(model).pop(name, None)


@contextlib.contextmanager
def alone(model: keras.Model) -> Iterator[None]:
    """See `Cluster.alone`."""
    with on_one_worker("a block of cluster.alone", "call it on all workers, outside of the block"), local(model):
        yield


def reject_keras_predict(strategy: tf.distribute.Strategy) -> None:
    """Makes Keras' own `predict` raise RuntimeError for models that were created in the scope of `strategy`.

    On one worker it would wait for the others forever, and on all it would return a part of the outputs on each.
    """
    original = keras.Model.predict

    @functools.wraps(original)
    def predict(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        if self.distribute_strategy is strategy:
            raise RuntimeError(
                "model.predict is Keras' own, and this model is on several workers. On all workers, call "
                "tfdist.predict(cluster, model, x); on one of them, `with cluster.alone(model): model.predict(x)`."
            )
        return original(self, *args, **keywords)

    keras.Model.predict = predict
